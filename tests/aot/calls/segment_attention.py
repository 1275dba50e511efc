import torch

from ..ptx import matrix_products

CHECKS = {"prefix_kernel": (matrix_products,), "segment_kernel": (matrix_products,)}
IN_TESTS = (
    "bfloat16, D 64, window",
    "bfloat16, D 128",
    "bfloat16, D 100",
    "float32, D 256, window and softcap",
)

# 33, 100 and 250 have strides that no load of 128 bits can serve.
SIZES = (32, 33, 64, 72, 100, 128, 250, 256)
WINDOW, SOFTCAP = {"window": 4096}, {"softcap": 50.0}
FLAGS = {"": {}, ", window": WINDOW, ", softcap": SOFTCAP, ", window and softcap": WINDOW | SOFTCAP}
# The code of float16 is that of bfloat16, and a soft-cap is a few instructions of any dtype.
ALL = {
    torch.bfloat16: (SIZES, FLAGS),
    torch.float16: ((64, 128), ("", ", window and softcap")),
    torch.float32: (SIZES, ("", ", window and softcap")),
}


def calls():
    """`{operator: {label: (args, kwargs)}}`"""
    found = {}
    for dtype, (sizes, labels) in ALL.items():
        for size in sizes:
            for flags in labels:
                query = torch.empty(1, 32, 40, size, dtype=dtype, device="meta")
                key = torch.empty(1, 8, 4096, size, dtype=dtype, device="meta")
                offsets = torch.empty(5, dtype=torch.int32, device="meta")
                per_row = torch.empty(1, dtype=torch.int32, device="meta")
                name = str(dtype).removeprefix("torch.")
                found[f"{name}, D {size}{flags}"] = (
                    (query, key, key, offsets, per_row, per_row),
                    {"scale": size**-0.5, **FLAGS[flags]},
                )
    return {"segment_attention": found}
