import torch

from ..ptx import barrier_before_stores, loads_of_128_bits

CHECKS = {"compact_kv_kernel": (barrier_before_stores, loads_of_128_bits)}
IN_TESTS = ("bfloat16, one row", "float32, rows that differ")


def calls():
    """`{operator: {label: (args, kwargs)}}`"""
    found = {}
    for dtype in (torch.uint8, torch.bfloat16, torch.float32, torch.float64):
        cache = torch.empty(32, 2, 1, 8, 4096, 128, dtype=dtype, device="meta")
        keep = torch.empty(20, dtype=torch.int64, device="meta")
        start = torch.empty((), dtype=torch.int64, device="meta")
        name = str(dtype).removeprefix("torch.")
        found[f"{name}, one row"] = ((cache, keep, start), {})
        rows = keep.new_empty(4, 300), start.new_empty(4)
        found[f"{name}, rows that differ"] = ((cache.expand(-1, -1, 4, -1, -1, -1), *rows), {})
    return {"compact_kv_": found}
