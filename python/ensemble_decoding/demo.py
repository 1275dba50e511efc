"""The demo: two small real models of different families answer together, round by round."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Column, Table
from rich.text import Text
from transformers.utils import logging

from .demo_models import fetch
from .member import Member
from .output import EnsembleOutput
from .specem import SpecEM
from .trace import Round

PROMPT = "Question: Why is the sky blue?\nAnswer:"
_COLORS = ("cyan", "yellow", "magenta", "green", "blue", "red")


def run_demo(prompt: str | None, *, max_new_tokens: int) -> EnsembleOutput:
    """Fetches the models, answers the prompt live and says what each part of it cost."""
    console = Console(highlight=False)
    prompt = PROMPT if prompt is None else prompt
    paths = fetch(report=console.print)
    logging.disable_progress_bar()
    start = time.perf_counter()
    members = [
        Member.from_pretrained(path, name=name, dtype=torch.bfloat16)
        for name, path in paths.items()
    ]
    console.print(f"loaded {len(members)} models in {time.perf_counter() - start:.1f} s\n")
    console.print(Text(prompt, style="dim"))
    output = _decode_live(console, SpecEM(members), prompt, max_new_tokens)
    console.print(_colored(output))
    alone = [_tokens_per_second_alone(member, prompt, max_new_tokens) for member in members]
    console.print(_speeds(output, alone))
    console.print(_times(output))
    return output


def _decode_live(
    console: Console, method: SpecEM, prompt: str, max_new_tokens: int
) -> EnsembleOutput:
    names = [member.name for member in method.members]
    run = method.stream(prompt, max_new_tokens=max_new_tokens)
    spinner = Spinner("dots", Text("drafting, verifying", style="dim"))
    with Live(spinner, console=console, transient=True, refresh_per_second=8) as live:
        for piece in run:
            live.console.print(_round_table(piece.round, names))
            live.update(Group(Text("… " + piece.text.strip(), style="dim"), spinner))
    return run.output


def _round_table(round_: Round, names: Sequence[str]) -> Table:
    weights = ", ".join(f"{n} {w:.2f}" for n, w in zip(names, round_.weights, strict=True))
    table = Table(
        title=f"round {round_.index + 1}   weights: {weights}",
        title_justify="left",
        caption=round_.reason,
        caption_justify="left",
        expand=True,
    )
    table.add_column("", width=1)
    table.add_column("draft", ratio=1)
    table.add_column("by")
    for name in names:
        table.add_column(f"{name}\nlog p (share)", justify="right")
    table.add_column("score", justify="right")
    for c, candidate in enumerate(round_.candidates):
        text = candidate.data.decode("utf-8", "replace") + ("⏹" if candidate.ended else "")
        won = c == round_.winner
        judged = [
            f"{'–' if m is None else format(m, '.2f')} ({share:.2f})"
            for m, share in zip(candidate.log_likelihoods, candidate.shares, strict=True)
        ]
        table.add_row(
            "►" if won else "",
            Text(text.replace("\n", "⏎"), style=_color(candidate.drafted_by) if won else "dim"),
            Text(", ".join(names[j] for j in candidate.drafted_by)),
            *judged,
            f"{candidate.score:.3f}",
        )
    return table


def _color(drafted_by: Sequence[int]) -> str:
    return _COLORS[drafted_by[0] % len(_COLORS)] if len(drafted_by) == 1 else "bold white"


def _colored(output: EnsembleOutput) -> Text:
    names = output.rounds.members
    text = Text("\nthe text, coloured by who drafted it (")
    for j, name in enumerate(names):
        text.append(name, style=_color([j]))
        text.append(", ")
    text.append("all", style=_color(range(len(names))))
    text.append("):\n")
    for round_ in output.rounds:
        text.append(round_.text, style=_color(round_.candidates[round_.winner].drafted_by))
    return text.append("\n")


@torch.no_grad()
def _tokens_per_second_alone(member: Member, prompt: str, max_new_tokens: int) -> float:
    """The member's own greedy `generate` on the same prompt."""
    ids = torch.tensor([member.encode_prompt(prompt)], device=member.device)
    start = time.perf_counter()
    generate: Any = member.model.generate
    out = generate(
        ids,
        attention_mask=torch.ones_like(ids),
        # Past an early end of text, so that the speed is measured over as many tokens.
        min_new_tokens=max_new_tokens,
        max_new_tokens=max_new_tokens,
        do_sample=False,
    )
    return (out.shape[1] - ids.shape[1]) / (time.perf_counter() - start)


def _speeds(output: EnsembleOutput, alone: Sequence[float]) -> Table:
    table = Table("", "tokens/s", title="speed", title_justify="left")
    speed = len(output.token_ids[0]) / output.seconds
    table.add_row("SpecEM, all members together", f"{speed:.1f}")
    for name, value in zip(output.rounds.members, alone, strict=True):
        table.add_row(f"{name} alone (greedy generate)", f"{value:.1f}")
    return table


def _times(output: EnsembleOutput) -> Table:
    table = Table(
        Column("", no_wrap=True),
        "passes",
        "prompt",
        "drafted",
        "verified",
        "seconds",
        "share",
        title="where the time went (tokens fed, seconds in forward passes)",
        title_justify="left",
    )
    total = output.seconds
    for usage in output.usage:
        table.add_row(
            usage.member,
            *map(str, (usage.forward_passes, usage.prompt_tokens)),
            *map(str, (usage.drafted_tokens, usage.verified_tokens)),
            f"{usage.seconds:.2f}",
            f"{usage.seconds / total:.0%}",
        )
    table.add_section()
    rest = total - sum(usage.seconds for usage in output.usage)
    table.add_row("outside of models", "", "", "", "", f"{rest:.2f}", f"{rest / total:.0%}")
    table.add_row("of all, in:")
    for operator in sorted({name for usage in output.usage for name in usage.operator_seconds}):
        seconds = sum(usage.operator_seconds.get(operator, 0.0) for usage in output.usage)
        share = f"{seconds / total:.0%}"
        table.add_row(f"  {operator}", "", "", "", "", f"{seconds:.2f}", share)
    return table
