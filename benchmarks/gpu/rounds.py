"""A round of SpecEM on two tiny random models: what is launched, and how long it takes.

The models cost next to nothing on a GPU, so this is the loop around models, and how much of a round
waits for launches, at the least.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks.gpu.budget import Part
from benchmarks.gpu.clock import Clock
from ensemble_kernels import _dispatch, _triton

WARM_ROUNDS, TIMED_ROUNDS = 2, 5
LEAST_SECONDS = 6.0
SEGMENT = 10
PROMPT = "The answer is 42, and the question was lost. " * 20
# Of the CUDA runtime and driver, as the profiler names their calls.
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch")
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")


def measure(clock: Clock, part: Part, tiny: bool) -> dict[str, Any]:
    """By the back ends that a decoder gets when it names none, and by the references."""
    missing = needed()
    if missing is not None:
        return {"skipped": missing}
    # A dry run names Triton's, since a CPU would get the native ones.
    chosen = {"triton" if tiny else "fastest": "triton" if tiny else None, "reference": "reference"}
    results = {}
    for name, back_end in chosen.items():
        if part.fits(0.0 if tiny else LEAST_SECONDS, name):
            with _default_back_end(back_end):
                results[name] = _one(clock, tiny)
    return results


def needed() -> str | None:
    """None if the decoder can be imported, else why not."""
    try:
        import ensemble_decoding  # noqa: F401
        import tests.decoding.tokenizers_for_tests  # noqa: F401
    except ImportError as error:
        return f"the decoder cannot be imported: {error}"
    return None


@contextmanager
def _default_back_end(name: str | None) -> Iterator[None]:
    before = _dispatch.default_backend
    _dispatch.default_backend = name
    try:
        yield
    finally:
        _dispatch.default_backend = before


def members(device: torch.device, tiny: bool) -> list[Any]:
    """Random Llamas with tokenizers of their own, made here. Nothing is fetched."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from ensemble_decoding import Member
    from tests.decoding.tokenizers_for_tests import byte_level_tokenizer, sentencepiece_tokenizer

    made = []
    for seed, tokenizer in enumerate((byte_level_tokenizer(), sentencepiece_tokenizer(bos=False))):
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=16 if tiny else 256,
            intermediate_size=16 if tiny else 512,
            num_hidden_layers=1 if tiny else 4,
            num_attention_heads=1 if tiny else 4,
            num_key_value_heads=1 if tiny else 2,
            max_position_embeddings=4096,
            bos_token_id=None,
            eos_token_id=None,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = LlamaForCausalLM(config)
        with torch.no_grad():
            # Logits that differ, and an end of text that is never the highest.
            model.lm_head.weight.mul_(20)
            model.lm_head.weight[tokenizer.eos_token_id] = 0
        dtype = torch.float32 if tiny else torch.bfloat16
        made.append(Member(model.eval().to(device, dtype), tokenizer, name=f"random {seed}"))
    return made


def _one(clock: Clock, tiny: bool) -> dict[str, Any]:
    from ensemble_decoding import SpecEM

    segment = 2 if tiny else SEGMENT
    warm, timed = (1, 1) if tiny else (WARM_ROUNDS, TIMED_ROUNDS)
    run = SpecEM(members(clock.device, tiny), segment_length=segment).stream(
        PROMPT[:45] if tiny else PROMPT, max_new_tokens=(warm + timed + 2) * segment * 2
    )
    for _ in range(warm):
        next(run)
    seconds = [_seconds(run, clock) for _ in range(timed)]
    launched = _triton.launches.total()
    activities = [torch.profiler.ProfilerActivity.CPU]
    if clock.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        next(run)
        clock.synchronize()
    return {
        "segment": segment,
        "ms_per_round": 1e3 * statistics.median(seconds),
        "triton_launches": _triton.launches.total() - launched,
        **counts(profile.events()),
    }


def _seconds(run: Iterator[Any], clock: Clock) -> float:
    clock.synchronize()
    start = time.perf_counter()
    next(run)
    clock.synchronize()
    return time.perf_counter() - start


def counts(events: Sequence[Any]) -> dict[str, Any]:
    """Of one profiled round. What is on the device shows there by its own name; ranges that the
    loop marks are shown there as well, and are no work."""
    names = [event.name for event in events]
    on_device = [
        event
        for event in events
        if event.device_type == torch.autograd.DeviceType.CUDA
        and not getattr(event, "is_user_annotation", False)
    ]
    kernels = [event for event in on_device if not event.name.startswith(("Memcpy", "Memset"))]
    return {
        "launches": sum(name.startswith(LAUNCHES) for name in names),
        "waits": sum(name.startswith(WAITS) for name in names),
        "kernels": len(kernels),
        "copies": len(on_device) - len(kernels),
        "device_ms": sum(event.time_range.elapsed_us() for event in on_device) / 1e3,
        # The references that are named are plain Python, and so no operators to the profiler.
        "operators": {
            name.split("::")[1]: names.count(name)
            for name in sorted(set(names))
            if name.startswith(("ensemble_kernels::", "ensemble_kernels_triton::"))
        },
    }


def lines(results: dict[str, Any]) -> list[str]:
    """For the terminal."""
    if "skipped" in results:
        return [f"SpecEM: left out, {results['skipped']}"]
    return [
        f"SpecEM, two random models, {row['segment']} tokens a draft, {name}: "
        f"{row['ms_per_round']:.2f} ms a round, of it {row['device_ms']:.2f} ms on the device; "
        f"{row['launches']} launches, {row['kernels']} kernels, {row['copies']} copies, "
        f"{row['waits']} waits; {row['triton_launches']} launches of Triton's; "
        f"operators {row['operators']}"
        for name, row in results.items()
    ]
