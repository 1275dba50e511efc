"""What the loop costs besides the models: python -m benchmarks.loop [--json FILE] [--quick]

Floors: the members' own forward passes (L-1 decoding steps and one packed pass for each member and
round), and for the statistics of a pass over R rows R·V·b bytes read once.
"""

from __future__ import annotations

import argparse
import statistics
from itertools import pairwise
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer, DynamicCache

from benchmarks.output_file import output_file
from benchmarks.stub_model import stub_member
from benchmarks.timing import median_ratio, side_by_side, write_json
from ensemble_decoding import SAFE, CoSD, Member, SpecEM
from ensemble_decoding.attention_switch import NAME
from ensemble_decoding.cache import cache_argument
from ensemble_decoding.demo_models import model_path
from ensemble_decoding.specem_run import SpecEMRun
from ensemble_kernels.profiling import annotate, timed_ranges
from tests.decoding.tokenizers_for_tests import byte_level_tokenizer, sentencepiece_tokenizer

CONTEXTS = (512, 8192)
RANGES = 10_000
SEGMENT = 10
# What the project has set itself.
GOALS = {"per token": 0.5, "per round": 5.0, "outside": 0.10, "step": 1.05}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=output_file, metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    options = parser.parse_args()
    repetitions = 5 if options.quick else 20
    paths = {name: model_path(name) for name in ("smollm2", "gemma3")}
    results = {
        "ranges": range_cost(),
        "stub": stub_overhead(paths, rounds=repetitions),
        "stub, drafted": drafted_overhead(paths, rounds=repetitions),
        "step": [
            row
            for name, path in paths.items()
            for dtype in (torch.float32, torch.bfloat16)
            for row in decoding_step(name, path, dtype, 2 * repetitions)
        ],
        "real": [outside_of_the_models(paths, dtype) for dtype in (torch.float32, torch.bfloat16)],
    }
    console = Console(width=110)
    for title, rows in results.items():
        table = Table(*rows[0], title=title, title_justify="left")
        for row in rows:
            table.add_row(*(f"{v:.3f}" if isinstance(v, float) else str(v) for v in row.values()))
        console.print(table)
    write_json(options.json, {"goals": GOALS, **results})


def range_cost() -> list[dict[str, Any]]:
    """Microseconds that a range takes where nobody looks, and on a clock."""

    def ranges() -> None:
        for _ in range(RANGES):
            with annotate("name"):
                pass

    def bare() -> None:
        for _ in range(RANGES):
            pass

    def nothing() -> None:
        pass

    seconds = side_by_side({"off": (nothing, ranges), "loop": (nothing, bare)}, repetitions=20)
    empty = statistics.median(seconds["loop"])
    rows = [{"range": "off", "µs": 1e6 * (statistics.median(seconds["off"]) - empty) / RANGES}]
    with timed_ranges():
        seconds = side_by_side({"on": (nothing, ranges)}, repetitions=20)
    taken = 1e6 * (statistics.median(seconds["on"]) - empty) / RANGES
    return [*rows, {"range": "on a clock", "µs": taken}]


def stub_overhead(paths: dict[str, Any], rounds: int) -> list[dict[str, Any]]:
    """Milliseconds of the loop for each drafted token and for the rest of a round, with two
    members whose models cost nothing."""
    small = (byte_level_tokenizer(), sentencepiece_tokenizer(bos=False))
    real = tuple(AutoTokenizer.from_pretrained(path) for path in paths.values())
    rows = []
    for kind, tokenizers in (("small", small), ("real", real)):
        for context in CONTEXTS:
            members = [
                stub_member(tokenizer, word, name)
                for tokenizer, word, name in zip(tokenizers, (" the", " a"), "ab", strict=True)
            ]
            run = SpecEM(members, segment_length=SEGMENT).stream(
                "the " * context, max_new_tokens=(rounds + 3) * SEGMENT * 2
            )
            next(run)
            seconds, operators = [], [_operator_seconds(run)]
            for _ in range(rounds):
                seconds.append(next(run).round.seconds)
                operators.append(_operator_seconds(run))
            drafting = statistics.median(s["draft"] for s in seconds)
            besides = statistics.median(sum(s.values()) - s["draft"] for s in seconds)
            of_it = statistics.median(b - a for a, b in pairwise(operators))
            rows.append(
                {
                    "vocabularies": f"{kind}: {len(tokenizers[0])}, {len(tokenizers[1])}",
                    "context": len(run.contexts[0].ids),
                    "ms per drafted token": 1e3 * drafting / (SEGMENT * len(members)),
                    "ms per round besides": 1e3 * besides,
                    "of it token_statistics": 1e3 * of_it,
                }
            )
    return rows


def drafted_overhead(paths: dict[str, Any], rounds: int) -> list[dict[str, Any]]:
    """The same of the methods in which one member drafts and the others read: with members that
    agree, and with such that never do."""
    tokenizers = [AutoTokenizer.from_pretrained(path) for path in paths.values()]
    rows = []
    for words in ((" the", " the"), (" the", " a")):
        for context in CONTEXTS:
            members = [
                stub_member(tokenizer, word, name)
                for tokenizer, word, name in zip(tokenizers, words, "ab", strict=True)
            ]
            methods: dict[str, Any] = {
                "SAFE": SAFE(members[0], members[1:]),
                "CoSD": CoSD(members[0], members[1:]),
            }
            for name, method in methods.items():
                run = method.stream("the " * context, max_new_tokens=5 * (rounds + 3))
                next(run)
                before = _fed(run)
                seconds = [next(run).round.seconds for _ in range(rounds)]
                drafting = statistics.median(s["draft"] for s in seconds)
                besides = statistics.median(sum(s.values()) - s["draft"] for s in seconds)
                rows.append(
                    {
                        "method": name,
                        "members": "agree" if words[0] == words[1] else "differ",
                        "context": context,
                        "ms per drafted token": 1e3 * drafting * rounds / (_fed(run) - before),
                        "ms per round besides": 1e3 * besides,
                    }
                )
    return rows


def _fed(run: Any) -> int:
    """Tokens that the drafter was fed while it drafted."""
    usage = run.output.usage[0]
    return int(usage.drafted_tokens + usage.committed_tokens)


def _operator_seconds(run: SpecEMRun) -> float:
    return sum(usage.operator_seconds["token_statistics"] for usage in run.output.usage)


def decoding_step(
    name: str, path: Any, dtype: torch.dtype, repetitions: int
) -> list[dict[str, Any]]:
    """One decoding step through our cache and attention against DynamicCache with SDPA."""
    member = Member.from_pretrained(path, dtype=dtype, name=name)
    rows = []
    for context in (64, 512, 2048):
        ids = torch.randint(100, 1000, (1, context))
        alternatives = {"ours": our_step(member, ids), "dynamic": dynamic_step(member, ids)}
        seconds = side_by_side(alternatives, repetitions=repetitions)
        ratio, low, high = median_ratio(seconds["ours"], seconds["dynamic"])
        rows.append(
            {
                "model": name,
                "dtype": str(dtype).removeprefix("torch."),
                "context": context,
                "ours, ms": 1e3 * statistics.median(seconds["ours"]),
                "DynamicCache, ms": 1e3 * statistics.median(seconds["dynamic"]),
                "ratio": ratio,
                "quartiles": f"{low:.3f} {high:.3f}",
            }
        )
    return rows


def our_step(member: Member, ids: torch.Tensor) -> Any:
    context = member.new_context()
    context.prefill(ids[0].tolist())

    def prepare() -> None:
        member.model.set_attn_implementation(NAME)
        context.cache.rollback()

    return prepare, lambda: context.passes.decode(101)


def dynamic_step(member: Member, ids: torch.Tensor) -> Any:
    model, keyword = member.model, cache_argument(member.model)
    cache = DynamicCache()
    with torch.no_grad():
        model(ids, use_cache=True, logits_to_keep=1, **{keyword: cache})

    def prepare() -> None:
        model.set_attn_implementation("sdpa")
        cache.crop(int(ids.shape[1]) - cache.get_seq_length())

    @torch.no_grad()
    def step() -> None:
        model(torch.tensor([[101]]), use_cache=True, logits_to_keep=1, **{keyword: cache})

    return prepare, step


def outside_of_the_models(paths: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """Share of the wall time that two real members spend outside of their forward passes."""
    members = [Member.from_pretrained(p, dtype=dtype, name=n) for n, p in paths.items()]
    shares = []
    for _ in range(3):
        output = SpecEM(members).generate("The history of the moon begins", max_new_tokens=64)
        shares.append(1 - sum(usage.seconds for usage in output.usage) / output.seconds)
    return {
        "models": ", ".join(paths),
        "dtype": str(dtype).removeprefix("torch."),
        "tokens": len(output.token_ids[0]),
        "rounds": len(output.rounds),
        "tokens/s": len(output.token_ids[0]) / output.seconds,
        "share outside of the models": statistics.median(shares),
        "fed (prompt, drafted, verified)": "; ".join(
            f"{u.prompt_tokens}, {u.drafted_tokens}, {u.verified_tokens}" for u in output.usage
        ),
    }


if __name__ == "__main__":
    main()
