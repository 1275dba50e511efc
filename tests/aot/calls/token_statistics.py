import torch

from ..ptx import loads_of_128_bits

CHECKS = {
    "chunk_statistics_kernel": (loads_of_128_bits,),
    "merge_chunks_kernel": (),
    "segment_mean_kernel": (),
}
IN_TESTS = (
    "bfloat16",
    "bfloat16, one chunk",
    "bfloat16, padding",
    "float32, a real vocabulary",
    "float16, any strides",
)
SIZES = {
    "one chunk": (4096, 4096),
    "a real vocabulary": (151_936, 151_936),
    "padding": (152_064, 151_643),
    "many chunks": (1_048_576, 1_048_576),
}


def calls():
    """`{operator: {label: (args, kwargs)}}`"""
    statistics, means = {}, {}
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        name = str(dtype).removeprefix("torch.")
        token_ids = torch.empty(10, dtype=torch.int64, device="meta")
        for label, (columns, vocab_size) in SIZES.items():
            logits = torch.empty(10, columns, dtype=dtype, device="meta")
            options = {"vocab_size": vocab_size, "temperature": 0.7}
            statistics[f"{name}, {label}"] = ((logits, token_ids), options)
        strided = torch.empty(50_257, 11, dtype=dtype, device="meta").t()[:10]
        options = {"vocab_size": 50_257, "temperature": 1.0}
        statistics[f"{name}, any strides"] = ((strided, token_ids), options)
        values = torch.empty(40, dtype=dtype, device="meta")
        offsets = torch.empty(5, dtype=torch.int32, device="meta")
        means[name] = ((values, offsets), {})
    return {"token_statistics": statistics, "segment_mean": means}
