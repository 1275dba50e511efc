"""`compact_kv_` in plain PyTorch.

Floor: 2 · (bytes of the kept slots), read once and written once. Slots that keep their place are
not touched; a run that overlaps its destination goes through a temporary, so twice the floor.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .._dispatch import check_contents


def compact_kv_(cache: Tensor, keep: Tensor, destination_start: Tensor) -> None:
    if check_contents(cache.device.type):
        check_keep(cache.shape[-2], keep, destination_start)
    if keep.shape[-1] == 0:
        return
    move = _move_runs if cache.device.type == "cpu" else _move_slots
    if keep.ndim == 1:
        move(cache, keep, destination_start)
        return
    for row in range(keep.shape[0]):
        move(cache.select(-4, row), keep[row], destination_start[row])


def _move_runs(cache: Tensor, keep: Tensor, destination_start: Tensor) -> None:
    """Moves runs of neighbours by copies of views, the first run first: a destination lies at or
    before its source, hence before all later sources."""
    slots = [slot for slot in keep.tolist() if slot >= 0]
    destination = int(destination_start)
    begin = 0
    for end in range(1, len(slots) + 1):
        if end < len(slots) and slots[end] == slots[end - 1] + 1:
            continue
        count, source = end - begin, slots[begin]
        if source != destination:
            moved = cache.narrow(-2, source, count)
            overlaps = source < destination + count
            cache.narrow(-2, destination, count).copy_(moved.clone() if overlaps else moved)
        destination += count
        begin = end


def _move_slots(cache: Tensor, keep: Tensor, destination_start: Tensor) -> None:
    """Without reading lengths back: padding repeats the first move, or moves nothing."""
    slots = destination_start + torch.arange(keep.shape[0], device=keep.device)
    first_slot = destination_start.clamp(max=cache.shape[-2] - 1)
    first_kept = torch.where(keep[0] < 0, first_slot, keep[0])
    padding = keep < 0
    # index_select copies before anything is written, so an overlap cannot be seen.
    kept = cache.index_select(-2, torch.where(padding, first_kept, keep))
    cache.index_copy_(-2, torch.where(padding, first_slot, slots), kept)


def check_keep(slots: int, keep: Tensor, destination_start: Tensor) -> None:
    if keep.ndim == 1:
        _check_row("keep", slots, keep.tolist(), "destination_start", int(destination_start))
        return
    rows = zip(keep.tolist(), destination_start.tolist(), strict=True)
    for row, (kept, start) in enumerate(rows):
        while kept and kept[-1] == -1:
            kept.pop()
        _check_row(f"keep[{row}]", slots, kept, f"destination_start[{row}]", start)


def _check_row(name: str, slots: int, kept: list[int], start_name: str, start: int) -> None:
    if start < 0:
        raise ValueError(f"{start_name} must not be negative, got {start}")
    previous = -1
    for i, slot in enumerate(kept):
        if not 0 <= slot < slots:
            raise ValueError(f"{name}[{i}] must be a slot from 0 to {slots - 1}, got {slot}")
        if slot <= previous:
            raise ValueError(f"{name} must ascend strictly, got {previous} before {slot}")
        if slot < start + i:
            raise ValueError(
                f"{name}[{i}] must be at or behind its destination {start + i}, got {slot}"
            )
        previous = slot
