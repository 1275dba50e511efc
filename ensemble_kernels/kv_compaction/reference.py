"""`compact_kv_` in plain PyTorch.

Floor: 2 · (bytes of the kept slots), read once and written once. This one reads and writes a
temporary of the kept slots besides, so twice the floor.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .._dispatch import check_contents


def compact_kv_(cache: Tensor, keep: Tensor, destination_start: Tensor) -> None:
    if check_contents(cache.device.type):
        _check_keep(cache.shape[-2], keep, destination_start)
    if keep.ndim == 1:
        _move_slots(cache, keep, destination_start)
        return
    for row in range(keep.shape[0]):
        kept = keep[row][keep[row] >= 0]
        _move_slots(cache.select(-4, row), kept, destination_start[row])


def _move_slots(cache: Tensor, keep: Tensor, destination_start: Tensor) -> None:
    # index_select copies before anything is written, so an overlap cannot be seen.
    kept = cache.index_select(-2, keep)
    slots = destination_start + torch.arange(keep.shape[0], device=keep.device)
    cache.index_copy_(-2, slots, kept)


def _check_keep(slots: int, keep: Tensor, destination_start: Tensor) -> None:
    rows = keep.tolist() if keep.ndim == 2 else [keep.tolist()]
    starts = destination_start.tolist() if keep.ndim == 2 else [int(destination_start)]
    for row, start in zip(rows, starts, strict=True):
        kept = list(row)
        while keep.ndim == 2 and kept and kept[-1] == -1:
            kept.pop()
        if start < 0:
            raise ValueError(f"destination_start must not be negative, got {start}")
        for i, slot in enumerate(kept):
            if not 0 <= slot < slots:
                raise ValueError(f"keep[{i}] must be a slot from 0 to {slots - 1}, got {slot}")
            if i and slot <= kept[i - 1]:
                raise ValueError(f"keep must ascend strictly, got {kept[i - 1]} before {slot}")
            if slot < start + i:
                raise ValueError(
                    f"keep[{i}] must be at or behind its destination {start + i}, got {slot}"
                )
