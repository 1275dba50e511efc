"""What a model's configuration says of its layers and positions."""

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


def frequency_switch(config: Any) -> int | None:
    """The longest text whose rotary frequencies are those of short ones; None where there is but
    one set.

    LongRoPE chooses its set by the longest position of a pass, so keys that were cached before the
    switch fit none behind it. ("dynamic" switches only at the end of the model's context.)
    """
    parameters = getattr(config, "rope_parameters", None) or {}
    by_layer = [one for one in parameters.values() if isinstance(one, dict)]
    switches = [
        one.get("original_max_position_embeddings") or config.max_position_embeddings
        for one in by_layer or [parameters]
        if one.get("rope_type") == "longrope"
    ]
    return min(switches, default=None)
