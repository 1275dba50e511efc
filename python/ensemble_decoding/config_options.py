"""What a transformers generation config asks of a run."""

from __future__ import annotations

from typing import Any

from transformers import GenerationConfig

# What a run takes from it.
_TAKEN = (
    "max_new_tokens",
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "stop_strings",
    "eos_token_id",
)
# What changes nothing in the text of one member: notes, caches and compilation, what `generate`
# returns beside the ids, and what counts with beams or an assistant only, which are refused.
_LEFT_ASIDE = (
    "transformers_version",
    "pad_token_id",
    "bos_token_id",
    "decoder_start_token_id",
    "use_cache",
    "cache_implementation",
    "cache_config",
    "max_cache_len",
    "low_memory",
    "prefill_chunk_size",
    "compile_config",
    "disable_compile",
    "continuous_batching_config",
    "renormalize_logits",
    "return_dict_in_generate",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "output_logits",
    "early_stopping",
    "length_penalty",
    "num_beam_groups",
    "diversity_penalty",
    "is_assistant",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "max_matching_ngram_size",
    "assistant_confidence_threshold",
    "assistant_early_exit",
    "assistant_lookbehind",
    "target_lookbehind",
    "assistant_ensemble_weight",
)
# A factor or a share of the probability: 1 changes nothing.
_NOTHING_AT_ONE = ("typical_p", "top_h", "encoder_repetition_penalty", "guidance_scale")
# Elsewhere 0, False or an empty list asks for nothing; here 0 is an id, or no time at all.
_SOMETHING_AT_ZERO = ("forced_bos_token_id", "forced_eos_token_id", "max_time")


def options_of_config(config: GenerationConfig | None, refused: tuple[str, ...]) -> dict[str, Any]:
    """What the config says of a run's options; `refused` are those that are handed on to be
    refused with a reason of their own.

    Raises:
        TypeError: it is no generation config.
        ValueError: it asks for something that a run does not do, naming it.
    """
    if config is None:
        return {}
    if not isinstance(config, GenerationConfig):
        raise TypeError(
            f"generation_config must be a transformers GenerationConfig, got "
            f"{type(config).__name__}"
        )
    handed_on = (*_TAKEN, *refused)
    for name in vars(GenerationConfig()):
        if name.startswith("_") or name in handed_on or name in _LEFT_ASIDE:
            continue
        value = getattr(config, name, None)
        if _asks_for_something(name, value):
            came = repr(value) if isinstance(value, str | int | float) else type(value).__name__
            raise ValueError(
                f"{name} is not supported, got {came}: "
                f"of a generation_config a run takes {', '.join(_TAKEN)}"
            )
    values = {name: getattr(config, name, None) for name in handed_on}
    return {name: value for name, value in values.items() if value is not None}


def _asks_for_something(name: str, value: Any) -> bool:
    if value is None or (name in _NOTHING_AT_ONE and value == 1):
        return False
    return bool(value) or name in _SOMETHING_AT_ZERO
