"""One model of an ensemble, with its tokenizer and what the loop needs to know of both."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .architecture import check_layers, frequency_switch
from .attention_check import check_attention
from .checkpoint import load_checkpoint
from .context import DecodingContext
from .gguf_models import load_gguf
from .prompt import Messages, tokenized_prompt
from .sampling import TokenChooser
from .text import TextEncoder
from .token_table import TokenTable


class Member:
    """A causal language model and its tokenizer, ready to decode with others.

    The model is used as it is: weights, dtype and device stay, and its attention implementation
    is switched only while a run is going on.

    Args:
        model: a `transformers` causal language model that takes its attention from transformers'
            attention interface and counts positions from 0. Recurrent, hybrid and encoder-decoder
            models are refused.
        tokenizer: its fast tokenizer.
        name: what traces and errors call it; by default the model's name.

    Raises:
        TypeError: `model` or `tokenizer` of another kind.
        ValueError: a model or tokenizer that cannot take part, naming what stands in the way.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str | None = None,
    ) -> None:
        if not isinstance(model, PreTrainedModel):
            raise TypeError(
                f"model must be a transformers PreTrainedModel, got {type(model).__name__}"
            )
        if not model.can_generate():
            raise ValueError(f"model must be a causal language model, got {type(model).__name__}")
        if not isinstance(tokenizer, PreTrainedTokenizerBase):
            raise TypeError(
                f"tokenizer must be a transformers tokenizer, got {type(tokenizer).__name__}"
            )
        self.model = model
        self.tokenizer = tokenizer
        self.name = name or _model_name(model)
        config = model.config.get_text_config(decoder=True)
        check_layers(config, type(model).__name__)
        self.num_layers: int = config.num_hidden_layers
        self.has_softcap = getattr(config, "attn_logit_softcapping", None) is not None
        self.context_length: int | None = getattr(config, "max_position_embeddings", None)
        self._frequency_switch = frequency_switch(config)
        self._vocab_size: int = config.vocab_size
        self._set_end_of_text(_end_of_text_ids(model, tokenizer))
        check_attention(model, self.num_layers, self._some_text_ids())

    def __repr__(self) -> str:
        model = self.model
        return f"<Member {self.name!r}: {type(model).__name__}, {model.dtype}, {model.device}>"

    def _set_end_of_text(self, ids: tuple[int, ...]) -> None:
        self.end_of_text_ids = ids
        self.table = TokenTable.from_tokenizer(self.tokenizer, ids, vocab_size=self._vocab_size)
        self.encoder = TextEncoder(self.tokenizer, self.table)
        suppressed = self.table.suppressed_ids()
        self._suppressed_index = torch.tensor(suppressed, dtype=torch.int64)
        self._suppressed = frozenset(suppressed)

    def _some_text_ids(self) -> list[int]:
        """Three, none of them special: a model may treat padding or images in a way of its own."""
        text = [i for i, token in enumerate(self.table.token_bytes) if token is not None] or [0]
        return [text[len(text) * k // 4] for k in (1, 2, 3)]

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | os.PathLike[str],
        *,
        gguf_file: str | None = None,
        dtype: torch.dtype | str = "auto",
        device: torch.device | str | None = None,
        name: str | None = None,
        lazy: bool = False,
        **hf_kwargs: Any,
    ) -> Member:
        """Loads a model and its tokenizer from a hub id, a local folder or a GGUF file.

        Args:
            name_or_path: hub id, folder, or the path of a `.gguf` file.
            gguf_file: a GGUF file's name within that folder or repository.
            dtype: dtype of the weights; "auto" takes that of the checkpoint.
            device: where the model is put; by default where transformers puts it.
            name: see `Member`.
            lazy: load at first use, and again after `release()`; see `LazyMember`.
            **hf_kwargs: handed to transformers' `from_pretrained` for the model (quantisation,
                `device_map`, `revision`, ...).

        Raises:
            ValueError: nothing can be loaded from there, or not all of the weights, with the
                reason in one sentence.
        """
        if lazy:
            from .lazy import LazyMember  # which is a Member

            load = partial(
                cls.from_pretrained,
                name_or_path,
                gguf_file=gguf_file,
                dtype=dtype,
                device=device,
                name=name,
                **hf_kwargs,
            )
            shown = gguf_file or os.fspath(name_or_path)
            return LazyMember(load, name or os.path.basename(shown.rstrip("/")))
        path = os.fspath(name_or_path)
        if gguf_file is None and path.endswith(".gguf"):
            path, gguf_file = os.path.split(path)
        shown = os.path.join(path, gguf_file) if gguf_file else path
        if gguf_file is not None:
            model, tokenizer = load_gguf(path or ".", gguf_file, dtype=dtype, **hf_kwargs)
        else:
            model, tokenizer = load_checkpoint(path, dtype, hf_kwargs)
        model.eval()
        if device is not None:
            torch.nn.Module.to(model, device)
        return cls(model, tokenizer, name=name or os.path.basename(shown.rstrip("/")))

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def worker(self) -> str:
        """Members of one worker take turns, those of different ones work at the same time."""
        return str(self.device)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the model's weights and buffers, as they are stored."""
        return int(self.model.get_memory_footprint())

    def in_memory(self) -> Member:
        """The member with its model and tokenizer, which whoever holds it keeps; a `LazyMember`
        loads them for that."""
        return self

    def new_context(self, chooser: TokenChooser | None = None) -> DecodingContext:
        """State for one run of this member; `chooser` writes its drafts, by default greedily."""
        return DecodingContext(self, chooser)

    def with_end_of_text(self, end_of_text_ids: Sequence[int]) -> Member:
        """The same member with other end-of-text ids; model and tokenizer are shared."""
        if tuple(end_of_text_ids) == self.end_of_text_ids:
            return self
        other = copy.copy(self)
        other._set_end_of_text(tuple(end_of_text_ids))
        return other

    def encode_prompt(
        self, prompt: str | None = None, *, messages: Messages | None = None
    ) -> list[int]:
        """The prompt's ids: text with the tokenizer's defaults, or messages in the member's own
        chat template (without one: their contents, joined by a blank line, as text).

        Raises:
            ValueError: the ids are none at all, more than the model's context holds, or beyond
                the model's vocabulary.
        """
        ids = tokenized_prompt(self.tokenizer, prompt, messages, self.name)
        if not ids:
            raise ValueError(
                f"prompt must not be empty for member {self.name!r}, whose tokenizer adds no "
                f"beginning-of-text token"
            )
        if max(ids) >= self._vocab_size:
            raise ValueError(
                f"prompt must be of tokens that the model of member {self.name!r} has, which ends "
                f"at id {self._vocab_size - 1}, its tokenizer gave {max(ids)}"
            )
        limit = self.context_limit(len(ids))
        if limit is not None and len(ids) >= limit:
            raise ValueError(
                f"prompt must be shorter than the context of member {self.name!r}, "
                f"{limit} tokens, got {len(ids)}"
            )
        return ids

    def context_limit(self, prompt_length: int) -> int | None:
        """Tokens that a run may reach whose prompt has `prompt_length`; None without a limit. A
        run does not cross the switch of the rotary frequencies of LongRoPE."""
        limits = [self.context_length]
        if self._frequency_switch is not None and prompt_length <= self._frequency_switch:
            limits.append(self._frequency_switch)
        return min((limit for limit in limits if limit is not None), default=None)

    def is_end_of_text(self, token: int) -> bool:
        return token in self.end_of_text_ids

    def is_suppressed(self, token: int) -> bool:
        """Whether an id is neither text nor end-of-text, so that it is never drafted."""
        return token in self._suppressed

    def logits_size(self, logits: Tensor) -> int:
        """Columns of the logits that stand for ids; those behind them are padding."""
        return min(len(self.table), logits.shape[-1])

    @property
    def blank_logits(self) -> Tensor:
        """A row for a mixture in which the member has no say."""
        return torch.zeros(len(self.table), device=self.device)

    def suppressed_index(self, device: torch.device) -> Tensor:
        """The suppressed ids, ascending, `[n]` int64."""
        if self._suppressed_index.device != device:
            self._suppressed_index = self._suppressed_index.to(device)
        return self._suppressed_index


def _model_name(model: PreTrainedModel) -> str:
    path = str(model.config.name_or_path or "").rstrip("/")
    return os.path.basename(path) or model.config.model_type


def _end_of_text_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The ids that end the text: the generation config's, else the tokenizer's."""
    ids = getattr(model.generation_config, "eos_token_id", None)
    if ids is None:
        ids = tokenizer.eos_token_id
    if ids is None:
        return ()
    return tuple(ids) if isinstance(ids, Sequence) else (int(ids),)
