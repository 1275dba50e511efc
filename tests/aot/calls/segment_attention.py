import torch

from ..ptx import matrix_products

CHECKS = {"prefix_kernel": (matrix_products,), "segment_kernel": (matrix_products,)}
IN_TESTS = ("bfloat16, D 64, window", "bfloat16, D 128", "float32, D 64")

FLAGS = {
    "": {},
    ", window": {"window": 4096},
    ", softcap": {"softcap": 50.0},
    ", window and softcap": {"window": 4096, "softcap": 50.0},
}


def calls():
    """`{operator: {label: (args, kwargs)}}`"""
    found = {}
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for size in (32, 33, 64, 72, 100, 128, 256):
            if dtype == torch.float32 and size > 128:
                continue
            for flags, options in FLAGS.items():
                query = torch.empty(1, 32, 40, size, dtype=dtype, device="meta")
                key = torch.empty(1, 8, 4096, size, dtype=dtype, device="meta")
                offsets = torch.empty(5, dtype=torch.int32, device="meta")
                per_row = torch.empty(1, dtype=torch.int32, device="meta")
                name = str(dtype).removeprefix("torch.")
                found[f"{name}, D {size}{flags}"] = (
                    (query, key, key, offsets, per_row, per_row),
                    {"scale": size**-0.5, **options},
                )
    return {"segment_attention": found}
