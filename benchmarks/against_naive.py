"""SpecEM here against SpecEM as research code runs it, on two real models:
python -m benchmarks.against_naive [--json FILE] [--quick]

Both decode the same prompt and take turns round by round. In float32 the same drafts have to win in
every round. In bfloat16 rounding decides near ties and the texts may part: the number of new tokens
is the same, and a round is the same work whatever it writes, so the speeds compare all the same.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from benchmarks.naive_specem import NaiveRound, naive_specem
from benchmarks.timing import median_ratio, write_json
from ensemble_decoding import Member, SpecEM
from ensemble_decoding.demo_models import model_path
from ensemble_decoding.trace import Round

NAMES = ("smollm2", "gemma3")
# Tokens of the prompt and new ones, counted by the first model.
WARM_UP = (128, 48)
LENGTHS = ((512, 256), (4096, 64))
QUICK_LENGTHS = ((512, 40), (4096, 40))
# What rounding turns round in float32: scores of candidates, and logits of drafted tokens.
NEAR_TIE = {"score": 1e-4, "logit": 1e-3}
SENTENCES = (
    "{when} we left {place} and walked along {way} until we came to {sight}.",
    "The people there {habit}, and {who} told us that {tale}.",
    "In {place} we met {who}, who had lived there for {number} years.",
    "It was {weather}, so we stayed at {sight} and talked about {topic}.",
    "Nobody in {place} could explain why {tale}, but {who} had written a letter about {topic}.",
    "{when} the road turned away from {way}, and behind {sight} it was {weather}.",
)
WORDS = {
    "when": ("On Monday", "In the afternoon", "Before breakfast", "Two days later", "At noon"),
    "place": ("Harwick", "the old port", "Lower Eston", "the upper valley", "Saint Bride"),
    "way": ("the canal", "a row of poplars", "the railway line", "the north shore", "a dry wall"),
    "sight": ("a stone bridge", "the empty mill", "an inn with green doors", "the lighthouse"),
    "habit": ("keep bees", "mend their own boats", "bake bread with rye", "speak very slowly"),
    "who": ("a retired teacher", "the ferryman", "my cousin Ellen", "a young botanist"),
    "tale": ("the river once ran uphill", "the bells were sold", "no train stopped in winter"),
    "number": ("eleven", "forty", "nearly sixty", "twenty-three"),
    "weather": ("raining hard", "too hot to work", "windy and clear", "foggy until late"),
    "topic": ("the price of wool", "the history of maps", "a lost library", "how clocks are made"),
}
# Small models soon repeat themselves, and then all draft the same; less so behind a list of facts.
ENDING = (
    "\n\nThe teacher read from a book of facts about the countries of the world. France: the "
    "capital is Paris, and the people grow wine. Italy: the capital is Rome, and the people make "
    "cheese. Japan:"
)


class Duel(NamedTuple):
    """One run of both: their rounds, seconds of each turn, peak memory beyond what stood before
    in GB (None where the system does not tell), and our share of time outside of the models."""

    naive: list[NaiveRound]
    ours: list[Round]
    seconds: dict[str, list[float]]
    memory: dict[str, float | None]
    outside: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="fewer tokens")
    options = parser.parse_args()
    logging.disable_progress_bar()
    console, rows = Console(width=130), []
    for dtype in (torch.float32, torch.bfloat16):
        models, members = load(dtype)
        check(duel(models, members, WARM_UP), models, dtype, console)
        for lengths in QUICK_LENGTHS if options.quick else LENGTHS:
            load_average = os.getloadavg()[0]
            result = duel(models, members, lengths)
            check(result, models, dtype, console)
            rows.append(compared(result, lengths, dtype) | {"load before": load_average})
            write_json(options.json, {"against_naive": rows})
    console.print(as_table(rows))


def load(dtype: torch.dtype) -> tuple[list[tuple[Any, Any]], list[Member]]:
    """The models twice, since ours have another attention while a run is going on."""
    paths = [model_path(name) for name in NAMES]
    models = [
        (
            AutoModelForCausalLM.from_pretrained(p, dtype=dtype).eval(),
            AutoTokenizer.from_pretrained(p),
        )
        for p in paths
    ]
    members = [
        Member.from_pretrained(path, dtype=dtype, name=name)
        for path, name in zip(paths, NAMES, strict=True)
    ]
    return models, members


def english(tokenizer: Any, tokens: int) -> str:
    """Plain English of so many tokens, the same each time."""
    chance, sentences = random.Random(7), []
    for _ in range(tokens // 8):
        words = {name: chance.choice(choices) for name, choices in WORDS.items()}
        sentences.append(chance.choice(SENTENCES).format(**words))
    ids, ending = tokenizer([" ".join(sentences), ENDING])["input_ids"]
    return tokenizer.decode([*ids[: tokens - len(ending)], *ending])


def duel(models: list[tuple[Any, Any]], members: list[Member], lengths: tuple[int, int]) -> Duel:
    """Decodes with both, a round each in turn, in an order that turns round each time."""
    prompt, new_tokens = english(models[0][1], lengths[0]), lengths[1]
    run = SpecEM(members).stream(prompt, max_new_tokens=new_tokens)
    turns: dict[str, Iterator[Any]] = {
        "naive": naive_specem(models, prompt, max_new_tokens=new_tokens),
        "ours": (piece.round for piece in run),
    }
    rounds, seconds, peaks = ({name: list[Any]() for name in turns} for _ in range(3))
    before = memory("VmRSS")
    while turns:
        for name in list(turns) if len(rounds["ours"]) % 2 else list(turns)[::-1]:
            forget_peak()
            start = time.perf_counter()
            finished = next(turns[name], None)
            taken = time.perf_counter() - start
            if finished is None:
                del turns[name]
                continue
            rounds[name].append(finished)
            seconds[name].append(taken)
            peaks[name].append(memory("VmHWM"))
    last = rounds["naive"][-1]
    if last.candidates[last.winner].ended or run.output.finish_reason == "stop":
        raise RuntimeError(f"the text ended before {new_tokens} tokens: choose another ENDING")
    beyond = {n: None if before is None else max(peaks[n]) - before for n in peaks}
    outside = 1 - sum(usage.seconds for usage in run.output.usage) / run.output.seconds
    return Duel(rounds["naive"], rounds["ours"], seconds, beyond, outside)


def memory(field: str) -> float | None:
    """A field of /proc/self/status in GB; None where there is no such file."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next(int(line.split()[1]) * 1024 / 1e9 for line in lines if line.startswith(field))


def forget_peak() -> None:
    """Makes VmHWM count from here on (man 5 proc_pid_clear_refs)."""
    if memory("VmHWM") is not None:
        Path("/proc/self/clear_refs").write_text("5")


def check(duel_: Duel, models: list[tuple[Any, Any]], dtype: torch.dtype, console: Console) -> None:
    """Says how far both wrote the same. SystemExit if in float32 more than rounding is between."""
    name = str(dtype).removeprefix("torch.")
    same = common_rounds(duel_)
    if same == len(duel_.naive) == len(duel_.ours):
        console.print(f"{name}: the same drafts and winners in all {same} rounds")
        return
    naive, gaps = duel_.naive[same], {}
    if drafted(naive) == drafted(duel_.ours[same]):
        best = sorted(naive.scores)[-2:]
        gaps["score"] = best[-1] - best[0]
    else:
        gaps["logit"] = min(
            draft_gap(model, *ids)
            for (model, _), *ids in zip(models, naive.prefix_ids, naive.draft_ids, strict=True)
        )
    ((kind, gap),) = gaps.items()
    console.print(f"{name}: the same for {same} rounds, then a {kind} gap of {gap:.1e} decided")
    if dtype == torch.float32 and gap > NEAR_TIE[kind]:
        raise SystemExit(f"round {same + 1}: other drafts or another winner, and no near tie")


def common_rounds(duel_: Duel) -> int:
    for number, (naive, ours) in enumerate(zip(duel_.naive, duel_.ours, strict=False)):
        if drafted(naive) != drafted(ours) or naive.winner != ours.winner:
            return number
    return min(len(duel_.naive), len(duel_.ours))


def drafted(round_: NaiveRound | Round) -> list[tuple[bytes, bool]]:
    return [(candidate.data, candidate.ended) for candidate in round_.candidates]


@torch.no_grad()
def draft_gap(model: Any, before: list[int], draft: list[int]) -> float:
    """How close the second best token ever came while a draft was written."""
    fed = torch.tensor([[*before, *draft[:-1]]], device=model.device)
    logits = model(fed, use_cache=False, logits_to_keep=len(draft)).logits[0].float()
    best, second = logits.topk(2).values.unbind(1)
    return float((best - second).min())


def compared(duel_: Duel, lengths: tuple[int, int], dtype: torch.dtype) -> dict[str, Any]:
    """Speeds and their ratio are with the prompt; rounds next to each other are compared without
    the first, in which ours reads it. Research code that scores with logits as they are has no
    softmax: that ratio leaves naive's out, ours keeps its own."""
    naive, ours = sum(duel_.seconds["naive"]), sum(duel_.seconds["ours"])
    softmax = sum(round_.seconds["softmax"] for round_ in duel_.naive)
    tokens = sum(r.tokens for r in duel_.naive), sum(r.committed_tokens[0] for r in duel_.ours)
    pairs = zip(duel_.seconds["naive"][1:], duel_.seconds["ours"][1:], strict=False)
    per_round, low, high = median_ratio(*map(list, zip(*pairs, strict=True)))
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "prompt, new": f"{lengths[0]}, {lengths[1]}",
        "rounds": f"{len(duel_.naive)}, {len(duel_.ours)}",
        "naive, tokens/s": tokens[0] / naive,
        "ours, tokens/s": tokens[1] / ours,
        "ratio": tokens[1] / ours / (tokens[0] / naive),
        "without softmax": tokens[1] / ours / (tokens[0] / (naive - softmax)),
        "outside models": duel_.outside,
        "per round (quartiles)": f"{per_round:.2f} ({low:.2f} {high:.2f})",
        "naive, GB": duel_.memory["naive"],
        "ours, GB": duel_.memory["ours"],
        "seconds": duel_.seconds,
        "stages of naive": [round_.seconds for round_ in duel_.naive],
        "drafts that differ": [len(round_.candidates) for round_ in duel_.ours],
        "rounds alike": common_rounds(duel_),
    }


def as_table(rows: list[dict[str, Any]]) -> Table:
    shown = [name for name, value in rows[0].items() if not isinstance(value, list | dict)]
    table = Table(*shown, title="SpecEM, ours against naive", title_justify="left")
    for row in rows:
        table.add_row(
            *(f"{row[n]:.2f}" if isinstance(row[n], float) else str(row[n]) for n in shown)
        )
    return table


if __name__ == "__main__":
    main()
