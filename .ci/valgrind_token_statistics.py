"""Calls a native kernel, for valgrind to watch."""

import torch

from ensemble_kernels import token_statistics

calls = torch.ops.ensemble_kernels_native.calls
before = calls("token_statistics")
for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
    token_statistics(torch.randn(3, 9001).to(dtype), torch.tensor([1, 2, 9000]))
assert calls("token_statistics") == before + 4
