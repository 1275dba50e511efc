"""What all methods offer: an answer at once, or piece by piece."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from transformers import GenerationConfig

from .generation import DecodingRun
from .output import EnsembleOutput
from .prompt import Messages


class DecodingMethod(ABC):
    """A way to decode with several models. It subclasses this with `stream`."""

    def generate(
        self,
        prompt: str | None = None,
        *,
        messages: Messages | None = None,
        generation_config: GenerationConfig | None = None,
        **options: Any,
    ) -> EnsembleOutput:
        """Answers a prompt.

        Args:
            prompt: plain text, encoded with each tokenizer's defaults.
            messages: instead of `prompt`, a conversation of `{"role": ..., "content": ...}`,
                rendered with each member's chat template; a member without one gets the contents
                joined by blank lines.
            generation_config: what it says counts where `options` say nothing; what it asks for
                beyond them is refused.
            **options: see `GenerationOptions`: `max_new_tokens` (never more of the first member's
                tokens; exact where all members share a tokenizer, else cut back to a complete
                character), `do_sample`, `temperature`, `top_k`, `top_p`, `min_p`,
                `repetition_penalty`, `seed`, `stop_strings`, `eos_token_id`, `stopping_criteria`,
                `streamer`.

        Raises:
            TypeError, ValueError: bad arguments, before anything is decoded.
            DecodingError: a failure on the way, with what was generated as its `output`.
        """
        run = self.stream(prompt, messages=messages, generation_config=generation_config, **options)
        return run.finished()

    @abstractmethod
    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: Messages | None = None,
        generation_config: GenerationConfig | None = None,
        **options: Any,
    ) -> DecodingRun:
        """As `generate`, but an iterator of `StreamedText(text, round)`, one for each round. Only
        committed text is given out, and the pieces join to the text of the run's `output`."""
