import torch

from ..ptx import loads_of_128_bits


def loads_of_128_bits_on_nvidia(launch, code):
    """AMD's warps are wider, and share the same chunk."""
    return loads_of_128_bits(launch, code) if ".target sm_" in code else None


CHECKS = {
    "softmax_chunks_kernel": (loads_of_128_bits,),
    "mix_chunks_kernel": (),
    "normalise_kernel": (),
    "copy_and_sum_kernel": (),
    "sharpen_kernel": (),
    "chunk_keys_kernel": (loads_of_128_bits_on_nvidia,),
    "candidate_scores_kernel": (),
}
IN_TESTS = (
    "bfloat16",
    "arithmetic, bfloat16, 5 models",
    "geometric, bfloat16, 5 models",
    "arithmetic, mixed dtypes, any strides",
    "geometric, mixed dtypes, any strides",
    "k 10, bfloat16, 5 models",
    "k 100, bfloat16, 2 models",
    "k 10, mixed dtypes, any strides",
)
WIDTHS = (151_936, 128_256, 49_152, 32_000, 262_144)
SIZE = 210_123
COUNTS = {torch.bfloat16: (1, 2, 3, 4, 5), torch.float16: (2,), torch.float32: (2,)}


def calls():
    """`{operator: {label: (args, kwargs)}}`"""
    found = {"mix_distributions": {}, "sharpen_prefixes": {}, "top_k_union": {}}
    for dtype, counts in COUNTS.items():
        name = str(dtype).removeprefix("torch.")
        for count in counts:
            logits = [
                torch.empty(10, width, dtype=dtype, device="meta") for width in WIDTHS[:count]
            ]
            add_models(found, f"{name}, {count} models", logits)
        probabilities = torch.empty(10, SIZE, dtype=dtype, device="meta")
        ends, columns = int32(SIZE), torch.empty(10, 50, dtype=torch.int64, device="meta")
        found["sharpen_prefixes"][name] = ((probabilities, ends, columns, 0.1), {})
    strided = [
        torch.empty(10, 50_257, dtype=torch.float32, device="meta"),
        torch.empty(32_003, 11, dtype=torch.bfloat16, device="meta").t()[:10],
        torch.empty(11, 9, dtype=torch.float16, device="meta")[:10],
    ]
    add_models(found, "mixed dtypes, any strides", strided)
    return found


def add_models(found, label, logits):
    offsets, scores = ([int32(length) for _ in logits] for length in (SIZE + 1, SIZE))
    ids = [int32(given.shape[1]) for given in logits]
    values = [torch.empty(len(logits), device="meta") for _ in range(2)]
    for mean in ("arithmetic", "geometric"):
        arguments = (logits, offsets, ids, *values, mean == "geometric")
        found["mix_distributions"][f"{mean}, {label}"] = (arguments, {})
    for k in (10, 100) if len(logits) == 2 else (10,):
        found["top_k_union"][f"k {k}, {label}"] = ((logits, offsets, ids, scores, *values, k), {})


def int32(length):
    return torch.empty(length, dtype=torch.int32, device="meta")
