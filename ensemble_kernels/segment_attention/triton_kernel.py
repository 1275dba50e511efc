"""`segment_attention` in Triton.

Floor: 2(P+T)·Hkv·D·b + 2T·Hq·D·b + 4·T·Hq bytes, 4·Hq·D·Σ visible FLOPs. The rows of the G query
heads of one key head are packed, row t·G + g, so that a tile of them reads each key once.

Two launches. The prefix pass (`triton_prefix.py`) packs rows of all segments densely, since all of
them see the same keys; it works on splits of a fixed size and leaves of each a partial state: the
normalised output and the natural LSE, in float32. The segment pass (`triton_segment.py`) merges the
splits in the order of their index and goes on with the keys of the row's own segment, in tiles that
belong to one segment each. Blocks of keys are counted from the start of the prefix and of the
segment, and tiles have a fixed size: a row's bits depend neither on its neighbours nor on how many
candidates there are.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from .. import _triton
from .._dispatch import check_contents
from .reference import check_lengths
from .triton_prefix import prefix_kernel
from .triton_segment import segment_kernel

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LARGEST_HEAD = 256  # beyond it, no tile is small enough for the registers
# A partial state of a row costs 4·D bytes, as much as two bfloat16 keys, once for each split.
SPLIT = 512


def segment_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    segment_offsets: Tensor,
    prefix_length: Tensor | None = None,
    key_start: Tensor | None = None,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    batch, heads, rows, head_size = query.shape
    key_heads, plain_prefix = key.shape[1], key.shape[2] - rows
    if check_contents(query.device.type):
        check_lengths(segment_offsets, prefix_length, rows, plain_prefix)
    if query.dtype not in _DTYPES:
        expected = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES)
        got = str(query.dtype).removeprefix("torch.")
        raise _triton.Unsupported(f"query must be of dtype {expected} for Triton, got {got}")
    if head_size > LARGEST_HEAD:
        raise _triton.Unsupported(
            f"query must have D of at most {LARGEST_HEAD} for Triton, got {head_size}"
        )
    out = query.new_empty(query.shape)
    lse = query.new_empty((batch, heads, rows), dtype=torch.float32)
    if out.numel() == 0:
        return out, lse
    group, splits = heads // key_heads, triton.cdiv(plain_prefix, SPLIT)
    segments = segment_offsets.shape[-1] - 1
    states = batch * key_heads * splits * rows * group
    partial_out = query.new_empty((states, head_size), dtype=torch.float32)
    partial_lse = query.new_empty(states, dtype=torch.float32)
    segment_offsets = segment_offsets.contiguous()  # whose places are of 32 bits
    offsets = segment_offsets.expand(batch, -1)
    lengths = (segment_offsets, prefix_length, key_start, scale, softcap, window)
    sizes = (rows, key_heads, group, head_size, segments, plain_prefix, splits)
    per_row_strides = (
        *offsets.stride(),
        *(0 if per_row is None else per_row.stride(0) for per_row in (prefix_length, key_start)),
    )
    vector = _vector(query, key, value)
    strides = (*(_in_units(states, vector) for states in (query, key, value)), per_row_strides)
    options = _meta_parameters(query.dtype, head_size, vector)
    block_rows = options["BLOCK_ROWS"]
    if splits:
        grid = (triton.cdiv(rows * group, block_rows), splits, batch * key_heads)
        _triton.launch(prefix_kernel, grid)(
            *(query, key, value, partial_out, partial_lse),
            *(*lengths, *sizes, *strides),
            **options,
        )
    # Each segment, and the padding, may end with a tile that is not full.
    tiles = rows * group // block_rows + segments + 1
    _triton.launch(segment_kernel, (tiles, batch * key_heads))(
        *(query, key, value, partial_out, partial_lse, out, lse),
        *(*lengths, *sizes, *strides),
        **options,
    )
    return out, lse


# By the padded size of a head: rows, keys, warps, stages.
_TILES = {
    16: (64, 32, 4, 2),
    32: (64, 32, 4, 2),
    64: (64, 32, 4, 2),
    128: (64, 16, 8, 2),
    256: (32, 16, 8, 2),
}


def _vector(*tensors: Tensor) -> int:
    """The elements, 8 or 1, that all strides but those of columns, which are 1, are multiples of.
    Triton would see multiples of 16 by itself, but D is 72 in some models."""
    strides = [stride for states in tensors for stride in states.stride()[:-1]]
    aligned = all(states.stride(-1) == 1 for states in tensors)
    return 8 if aligned and all(stride % 8 == 0 for stride in strides) else 1


def _in_units(states: Tensor, vector: int) -> tuple[int, ...]:
    *strides, column_stride = states.stride()
    return *(stride // vector for stride in strides), column_stride


def _meta_parameters(dtype: torch.dtype, head_size: int, vector: int) -> dict[str, int | bool]:
    """Of both kernels: the largest tiles that no target spills registers for. They must not depend
    on how many rows there are, so that bits do not."""
    columns = max(triton.next_power_of_2(head_size), 16)
    scalar = vector == 1 or dtype == torch.float32  # loads, or products
    if dtype == torch.float32:  # is multiplied without matrix instructions
        rows, keys, warps, stages = 16, 16, 8, 2 if columns > 128 and vector > 1 else 1
    elif vector == 1:  # each element has a pointer of its own
        rows, keys, warps, stages = 32 if columns <= 128 else 16, 16, 8, 1
    else:
        rows, keys, warps, stages = _TILES[columns]
    return {
        "SPLIT": SPLIT,
        "BLOCK_ROWS": rows,
        "BLOCK_KEYS": keys,
        "BLOCK_COLUMNS": columns,
        "VECTOR": vector,
        # The interpreter multiplies matrices of bfloat16 as if they were integers.
        "UPCAST": _triton.interpreted(),
        "num_warps": warps,
        "num_stages": stages,
        # For these tiles a thread needs more than the assembler gives it of its own accord.
        **(_triton.registers(255) if scalar or columns > 128 else {}),
    }
