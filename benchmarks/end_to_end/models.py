"""The models that decode: two small real ones, and a third."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ensemble_decoding import Member
from ensemble_decoding.demo_models import model_path

NAMES = ("smollm2", "gemma3")
# Of each weight of the third model, where none is named: enough for drafts of its own, too little
# to unlearn to write.
NOISE = 0.03


class LoadedModel(NamedTuple):
    """A model as the peers use it and as a member; both have the same weights in memory."""

    name: str
    model: Any
    tokenizer: Any
    member: Member


def load(dtype: torch.dtype, third: str | None = None) -> list[LoadedModel]:
    """SmolLM2 135M, Gemma 3 270M, and `third` (a folder or an id on the hub) or, without one,
    SmolLM2 once more with some noise on its weights."""
    models = [_loaded(name, model_path(name), dtype) for name in NAMES]
    if third is not None:
        name = Path(third).resolve().name
        # Two of one name would be taken for one model.
        return [*models, _loaded(f"{name}, the third" if name in NAMES else name, third, dtype)]
    return [*models, _with_noise("smollm2 with noise", model_path(NAMES[0]), dtype)]


def _loaded(name: str, path: Path | str, dtype: torch.dtype) -> LoadedModel:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()
    tokenizer = AutoTokenizer.from_pretrained(path)
    return LoadedModel(name, model, tokenizer, Member(model, tokenizer, name=name))


@torch.no_grad()
def _with_noise(name: str, path: Path, dtype: torch.dtype) -> LoadedModel:
    loaded = _loaded(name, path, dtype)
    generator = torch.Generator().manual_seed(0)
    for weight in loaded.model.parameters():
        noise = torch.randn(weight.shape, generator=generator, dtype=torch.float32)
        weight.mul_((1 + NOISE * noise).to(dtype))
    return loaded
