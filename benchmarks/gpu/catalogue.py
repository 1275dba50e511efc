"""Which shapes are checked and timed: those of the CPU's benchmarks and such as GPUs get, or, for
a dry run, the smallest that still take every branch."""

from __future__ import annotations

from itertools import product

import torch

from benchmarks.gpu.attention import Attention
from benchmarks.gpu.case import Cases
from benchmarks.gpu.compaction import Compaction
from benchmarks.gpu.mixtures import Mix, TopK
from benchmarks.gpu.rows import Mean, Statistics
from benchmarks.gpu.sharpening import Sharpening
from benchmarks.operators import bench_compact_kv as compact
from benchmarks.operators.attention_peers import HEADS, LENGTHS, PREFIXES
from benchmarks.operators.bench_token_statistics import COLUMNS, ROWS
from benchmarks.operators.mixture_peers import VOCABULARIES

FLOAT, HALF, BRAIN = torch.float32, torch.float16, torch.bfloat16
DTYPES = (BRAIN, FLOAT)  # in the order of what runs on GPUs
LLAMA = HEADS[2]


def catalogue(tiny: bool) -> list[Cases]:
    """Attention, which has most shapes, is last: what the others leave of the time is its."""
    return _tiny() if tiny else [_statistics(), _mix(), _compaction(), *_others(), _attention()]


def _attention() -> Cases:
    small = [
        Attention(*heads, prefix, lengths, dtype)
        for heads in (*HEADS, (4, 2, 72, None), (2, 2, 16, 5))
        for prefix, lengths in ((0, (3, 2)), (19, (5, 1, 7)), (700, (5, 7, 8)))
        for dtype in (BRAIN, FLOAT, HALF)
    ]
    large = [
        Attention(*heads, 8192, LENGTHS[2], dtype) for heads in HEADS[1:] for dtype in DTYPES
    ] + [Attention(*LLAMA, 2048, LENGTHS[3], BRAIN)]
    shapes = product((LLAMA, *HEADS[:2]), LENGTHS[1:], (*PREFIXES, 32_768), DTYPES)
    timed = [Attention(*heads, prefix, lengths, dtype) for heads, lengths, prefix, dtype in shapes]
    # Two candidates, as two members draft them.
    timed += [Attention(*LLAMA, prefix, LENGTHS[0], BRAIN) for prefix in (*PREFIXES, 32_768)]
    return Cases("segment_attention", large + small, timed)


def _statistics() -> Cases:
    small = [
        Statistics(columns, 3, dtype)
        for columns in (1, 7, 31, 1023, 1024, 1025, 49_152)
        for dtype in (BRAIN, FLOAT, HALF)
    ]
    large = [
        Statistics(262_144, 64, BRAIN),
        Statistics(262_144, 64, FLOAT),
        Statistics(1_048_583, 2, BRAIN),
        # Elements behind 2^31, where offsets of 32 bits would have wrapped.
        Statistics(262_144, 8200, BRAIN, tail=4),
    ]
    timed = [
        Statistics(columns, rows, dtype)
        for rows in (*ROWS, 256, 1024)
        for columns in COLUMNS[::-1]
        for dtype in DTYPES
        if rows <= 64 or columns == COLUMNS[-1]
    ]
    return Cases("token_statistics", large + small, timed)


def _mix() -> Cases:
    checked = [
        Mix(sizes, rows, dtype, mean)
        for sizes, rows in ((VOCABULARIES[0], 8), ((40, 100, 60), 2), ((1025, 3000), 3))
        for dtype in DTYPES
        for mean in ("arithmetic", "geometric")
    ]
    timed = [Mix(*case) for case in product(VOCABULARIES, (1, 8, 64), DTYPES)]
    timed.append(Mix(VOCABULARIES[0], 8, BRAIN, "geometric"))
    return Cases("mix_distributions", checked, timed)


def _compaction() -> Cases:
    def llama(name: str, slots: int, keep: tuple[int, ...], dtype: torch.dtype) -> Compaction:
        return Compaction(compact.Case(name, 30, 8, slots, 128, keep, dtype))

    commits = [
        llama(name, 8192 + compact.PACKED, keep, dtype)
        for name, keep in (
            ("one-candidate", compact.ONE_CANDIDATE),
            ("scattered", compact.SCATTERED),
        )
        for dtype in DTYPES
    ]
    cases = [Compaction(case) for case in compact.CASES["full"]]
    half = [llama("half", 8192, tuple(range(4096, 8192)), BRAIN)]
    small = [
        Compaction(compact.Case("small", 2, 3, 40, size, (3, 4, 9, 17, 18, 33), dtype))
        for size in (1, 7, 64, 160)
        for dtype in (BRAIN, FLOAT, HALF, torch.int8, torch.float64)
    ]
    return Cases("compact_kv_", cases[-4:] + small + commits, commits + cases + half)


def _others() -> list[Cases]:
    small, pair = (40, 100, 60), VOCABULARIES[0]
    sharpening = [Sharpening(rows, 256, dtype) for rows in (1, 8) for dtype in (FLOAT, BRAIN)]
    lengths = ((5, 5), (5, 7, 8), (0, 300, 1, 0, 4000), (10,) * 100)
    means = [Mean(own, dtype) for own in lengths for dtype in DTYPES]
    return [
        Cases(
            "top_k_union",
            [
                TopK(pair, 4, FLOAT),
                TopK(pair, 4, BRAIN),
                TopK(small, 3, FLOAT),
                TopK(small, 2, HALF),
            ],
            [TopK(pair, rows, dtype) for rows in (1, 8) for dtype in DTYPES],
        ),
        Cases("sharpen_prefixes", [*sharpening, Sharpening(3, 5, FLOAT)], sharpening),
        Cases("segment_mean", means, [means[2], means[-2]]),
    ]


def _tiny() -> list[Cases]:
    sizes = (40, 100, 60)
    attention = [
        Attention(4, 2, 16, 9, 32, (3, 4), BRAIN),
        Attention(4, 2, 16, None, 8, (2, 1), FLOAT),
    ]
    statistics = [Statistics(1000, 3, BRAIN), Statistics(31, 4, FLOAT, tail=2)]
    mix = [Mix(sizes, 2, FLOAT), Mix(sizes, 1, BRAIN, "geometric")]
    compaction = [
        Compaction(compact.Case("tiny", 2, 2, 12, 4, (2, 5), dtype)) for dtype in (FLOAT, BRAIN)
    ]
    means = [Mean((5, 0, 4), BRAIN)]
    return [
        Cases("token_statistics", statistics, statistics),
        Cases("mix_distributions", mix, mix),
        Cases("compact_kv_", compaction, compaction),
        Cases("top_k_union", [TopK(sizes, 2, FLOAT)], [TopK(sizes, 1, BRAIN)]),
        Cases("sharpen_prefixes", [Sharpening(2, 5, FLOAT)], [Sharpening(1, 5, BRAIN)]),
        Cases("segment_mean", means, [Mean((5, 4), FLOAT)]),
        Cases("segment_attention", attention, attention),
    ]
