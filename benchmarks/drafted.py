"""SAFE, CoSD and token-level ensembles on two real models, against a model alone, Hugging Face's
assisted decoding and a naive per-token ensemble:
python -m benchmarks.drafted [--json FILE] [--quick]

In float32 the naive ensemble must choose the tokens that SAFE chooses under "always" without
sharpening, near ties aside, before anything is timed. Whole runs take turns; medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer
from transformers.utils import logging

from benchmarks.against_naive import NAMES, english, load
from benchmarks.naive_union import NaiveModel, naive_union
from benchmarks.stub_model import stub_member
from benchmarks.timing import write_json
from ensemble_decoding import SAFE, CoSD, EnsembleOutput, Member, TokenEnsemble
from ensemble_decoding.demo_models import model_path

PROMPT, LONG_PROMPT = 512, 4096
NEW, QUICK_NEW = 64, 24
# What rounding turns round: the distance of the two likeliest tokens of the mixture.
NEAR_TIE = 1e-4
# What the project has set itself: milliseconds with models that cost nothing, share of wall time.
GOALS = {"per token": 0.5, "per round": 5.0, "outside": 0.05, "against naive": 8.0}
Run = Callable[[str, int], EnsembleOutput]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="fewer tokens and repetitions")
    options = parser.parse_args()
    logging.set_verbosity_error()
    new, repetitions = (QUICK_NEW, 1) if options.quick else (NEW, 3)
    console = Console(width=130)
    results: dict[str, Any] = {"goals": GOALS, "stub": stub_overhead(5 if options.quick else 20)}
    show(console, "stub models", results["stub"])
    for dtype in (torch.float32, torch.bfloat16):
        models, members = load(dtype)
        prompt = english(models[0][1], PROMPT)
        if dtype == torch.float32:
            check(models, members, prompt, QUICK_NEW, console)
        rows = compare(models, members, prompt, new, repetitions)
        name = str(dtype).removeprefix("torch.")
        results[name] = rows
        show(console, f"{name}, {PROMPT} + {new} tokens", rows)
        results[f"growth, {name}"] = growth(models, members, QUICK_NEW)
        show(console, f"{name}, milliseconds a token behind the first", results[f"growth, {name}"])
        write_json(options.json, results)


def methods(members: list[Member]) -> dict[str, Run]:
    drafter, other = members
    made: dict[str, Any] = {
        "TokenEnsemble, union": TokenEnsemble(members, alignment="union"),
        "SAFE, always": SAFE(drafter, [other], ensemble_when="always"),
        "SAFE": SAFE(drafter, [other]),
        "SAFE, never": SAFE(drafter, [other], ensemble_when="never"),
        "CoSD": CoSD(drafter, other),
    }

    def run(method: Any) -> Run:
        return lambda prompt, new: method.generate(prompt, max_new_tokens=new)

    return {name: run(method) for name, method in made.items()}


def check(
    models: list[Any], members: list[Member], prompt: str, new: int, console: Console
) -> None:
    """SystemExit if the naive ensemble and ours choose another token, and no near tie."""
    ours = SAFE(members[0], members[1:], ensemble_when="always", sharpen=None).stream(
        prompt, max_new_tokens=new
    )
    naive = naive_union([NaiveModel(*model) for model in models], prompt, new)
    for number, (piece, token) in enumerate(zip(ours, naive, strict=False), 1):
        if piece.round.data != (token.data or b""):
            console.print(
                f"the same for {number - 1} tokens, then a gap of {token.gap:.1e} decided"
            )
            if token.gap > NEAR_TIE:
                raise SystemExit(f"token {number}: another choice, and no near tie")
            return
    console.print(f"naive and SAFE under always: the same {new} tokens")


def compare(
    models: list[Any], members: list[Member], prompt: str, new: int, repetitions: int
) -> list[dict[str, Any]]:
    naive_models = [NaiveModel(*model) for model in models]
    ours = methods(members)
    alternatives: dict[str, Callable[[], Any]] = {
        "first model alone": lambda: generate(models, prompt, new),
        "assisted decoding": lambda: generate(models, prompt, new, assisted=True),
        "naive union": lambda: list(naive_union(naive_models, prompt, new)),
    }
    alternatives |= {
        name: (lambda run=run: run(prompt, new))
        for name, run in ours.items()  # type: ignore[misc]
    }
    seconds: dict[str, list[float]] = {name: [] for name in alternatives}
    outputs: dict[str, Any] = {}
    for repetition in range(-1, repetitions):
        for name in alternatives if repetition % 2 else list(alternatives)[::-1]:
            if repetition < 0 and name == "naive union":
                continue  # too slow to be warmed up, and nothing of it is kept
            start = time.perf_counter()
            try:
                outputs[name] = alternatives[name]()
            except RuntimeError as error:
                # transformers cannot take back what a sliding window has let go of.
                if name != "assisted decoding":
                    raise
                outputs[name] = error
            if repetition >= 0:
                seconds[name].append(time.perf_counter() - start)
    naive = statistics.median(seconds["naive union"]) / len(outputs["naive union"])
    rows = []
    for name, times in seconds.items():
        output = outputs[name]
        if isinstance(output, RuntimeError):
            row = dict.fromkeys(("tokens", "tokens/s", "naive/this"), "")
            row |= dict.fromkeys(("ensembled or replaced", "outside of the models"), "")
            rows.append({"method": name, **row, "passes a token": f"fails: {output}"[:60]})
            continue
        tokens = output if isinstance(output, int) else len(ids_of(output))
        per_token = statistics.median(times) / tokens
        rows.append(
            {
                "method": name,
                "tokens": tokens,
                "tokens/s": 1 / per_token,
                "naive/this": naive / per_token,
                "ensembled or replaced": share(output),
                "outside of the models": outside(output),
                "passes a token": passes(output, tokens),
                "seconds": times,
            }
        )
    return rows


def generate(models: list[Any], prompt: str, new: int, *, assisted: bool = False) -> int:
    """Tokens that the first model writes by `generate`."""
    (model, tokenizer), (assistant, other) = models
    fed = tokenizer(prompt, return_tensors="pt")
    keywords: dict[str, Any] = {"max_new_tokens": new, "do_sample": False}
    if assisted:
        keywords |= {
            "assistant_model": assistant,
            "tokenizer": tokenizer,
            "assistant_tokenizer": other,
        }
    written = model.generate(**fed, **keywords)
    return int(written.shape[1] - fed["input_ids"].shape[1])


def ids_of(output: Any) -> list[Any]:
    return output.token_ids[0] if isinstance(output, EnsembleOutput) else output


def share(output: Any) -> str:
    if not isinstance(output, EnsembleOutput):
        return ""
    if output.ensembled_share is not None:
        return f"{output.ensembled_share:.1%}"
    decisions = [one for round_ in output.rounds for one in round_.decisions]
    replaced = sum(one.decided_by is not None for one in decisions)
    return f"{replaced / max(len(decisions), 1):.1%}"


def outside(output: Any) -> str:
    if not isinstance(output, EnsembleOutput):
        return ""
    return f"{1 - sum(usage.seconds for usage in output.usage) / output.seconds:.1%}"


def passes(output: Any, tokens: int) -> str:
    if not isinstance(output, EnsembleOutput):
        return ""
    return ", ".join(f"{usage.forward_passes / tokens:.2f}" for usage in output.usage)


def growth(models: list[Any], members: list[Member], new: int) -> list[dict[str, Any]]:
    """Milliseconds a token, without the first round, in which the prompt is read."""
    rows = []
    drafter, other = members
    kinds = {
        "drafter alone": SAFE(drafter, [other], ensemble_when="never"),
        "other alone": SAFE(other, [drafter], ensemble_when="never"),
        "SAFE": SAFE(drafter, [other]),
        "SAFE, always": SAFE(drafter, [other], ensemble_when="always"),
        "CoSD": CoSD(drafter, other),
    }
    for name, method in kinds.items():
        times = {}
        for length in (PROMPT, LONG_PROMPT):
            run = method.stream(english(models[0][1], length), max_new_tokens=new)
            next(run)
            before, start = len(run.output.token_ids[0]), time.perf_counter()
            tokens = len(run.finished().token_ids[0]) - before
            times[length] = 1e3 * (time.perf_counter() - start) / tokens
        rows.append(
            {
                "method": name,
                **{f"at {length}": value for length, value in times.items()},
                "growth": times[LONG_PROMPT] / times[PROMPT],
            }
        )
    return rows


def stub_overhead(rounds: int) -> list[dict[str, Any]]:
    """Milliseconds of the loop for each drafted token and for the rest of a round, with two
    members whose models cost nothing: such that agree, and such that never do."""
    tokenizers = [AutoTokenizer.from_pretrained(model_path(name)) for name in NAMES]
    rows = []
    for words in ((" the", " the"), (" the", " a")):
        for context in (512, 8192):
            members = [
                stub_member(tokenizer, word, name)
                for tokenizer, word, name in zip(tokenizers, words, "ab", strict=True)
            ]
            for name, method in {
                "SAFE": SAFE(members[0], members[1:]),
                "CoSD": CoSD(members[0], members[1:]),
            }.items():
                new = 5 * (rounds + 3)
                run = method.stream("the " * context, max_new_tokens=new)  # type: ignore[attr-defined]
                next(run)
                before = [u.drafted_tokens + u.committed_tokens for u in run.output.usage[:1]]
                seconds = [next(run).round.seconds for _ in range(rounds)]
                drafted = [u.drafted_tokens + u.committed_tokens for u in run.output.usage[:1]]
                besides = [sum(s.values()) - s["draft"] for s in seconds]
                count = (drafted[0] - before[0]) / rounds
                rows.append(
                    {
                        "method": name,
                        "members": "agree" if words[0] == words[1] else "differ",
                        "context": context,
                        "ms per drafted token": 1e3
                        * statistics.median(s["draft"] for s in seconds)
                        / count,
                        "ms per round besides": 1e3 * statistics.median(besides),
                    }
                )
    return rows


def show(console: Console, title: str, rows: list[dict[str, Any]]) -> None:
    shown = [name for name, value in rows[0].items() if not isinstance(value, list | dict)]
    table = Table(*shown, title=title, title_justify="left")
    for row in rows:
        table.add_row(
            *(f"{row[n]:.3g}" if isinstance(row[n], float) else str(row[n]) for n in shown)
        )
    console.print(table)


if __name__ == "__main__":
    main()
