"""Prompts as ids: text as the tokenizer takes it, messages by its chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

Messages = Sequence[Mapping[str, Any]]


def tokenized_prompt(
    tokenizer: PreTrainedTokenizerBase, prompt: str | None, messages: Messages | None, name: str
) -> list[int]:
    """The ids of a text, or of messages in the tokenizer's chat template (without one: of their
    contents, joined by a blank line). They begin with at most one beginning-of-text token.

    Raises:
        ValueError: the template takes no such messages; names the member, `name`.
    """
    if messages is not None and tokenizer.chat_template is not None:
        rendered = _rendered(tokenizer, messages, name)
        ids = tokenizer(rendered, add_special_tokens=False)["input_ids"]
    else:
        if messages is not None:
            prompt = "\n\n".join(message["content"] for message in messages)
        ids = tokenizer(prompt)["input_ids"]
    return _single_bos(tokenizer, list(ids))


def _rendered(tokenizer: PreTrainedTokenizerBase, messages: Messages, name: str) -> str:
    plain = [dict(message) for message in messages]
    try:
        rendered = tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # templates are programs: they raise what they like
        raise ValueError(
            f"messages cannot be rendered by the chat template of member {name!r}: {error}"
        ) from error
    return str(rendered)


def _single_bos(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> list[int]:
    # A prompt that spells the beginning-of-text token gets a second one from the tokenizer.
    bos = tokenizer.bos_token_id
    if bos is not None and tokenizer("")["input_ids"][:1] == [bos]:
        while ids[:2] == [bos, bos]:
            del ids[0]
    return ids
