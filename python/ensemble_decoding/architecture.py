"""What a model's configuration says of its layers."""

from __future__ import annotations

from typing import Any

_ATTENTION_LAYERS = ("full_attention", "sliding_attention")


def check_layers(config: Any, model_class: str) -> None:
    """Refuses layers whose state cannot be cut back to an earlier position."""
    if config.is_encoder_decoder:
        raise ValueError(f"model must be a decoder only, {model_class} has an encoder")
    layer_types = getattr(config, "layer_types", None) or []
    refused = sorted(set(layer_types) - set(_ATTENTION_LAYERS))
    if refused:
        raise ValueError(
            f"model must have layers of {' or '.join(_ATTENTION_LAYERS)} only, since others cannot "
            f"be rolled back; {model_class} has {', '.join(refused)}"
        )
    if not getattr(config, "num_attention_heads", 0):
        raise ValueError(
            f"model must have attention layers, {model_class} ({config.model_type}) has recurrent "
            f"ones, which cannot be rolled back"
        )
