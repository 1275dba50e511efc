"""Checks of what a method is asked for, before anything is decoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import GenerationConfig

from ensemble_kernels.profiling import annotate

from .member import Member
from .options import GenerationOptions
from .prompt import Messages
from .stopping import end_of_text_lists
from .text import check_text


def prepared(
    members: Sequence[Member],
    prompt: str | None,
    messages: Messages | None,
    options: Mapping[str, Any],
    generation_config: GenerationConfig | None,
) -> tuple[list[Member], list[list[int]], GenerationOptions]:
    """Checks a request: the members with the end-of-text ids that it asks for, each member's
    prompt, and the options of the run.

    Raises:
        TypeError, ValueError: naming the argument, what was expected and what came.
    """
    check_request(prompt, messages)
    resolved = GenerationOptions.resolve(options, generation_config)
    # The run keeps what it begins with, whatever is released meanwhile.
    members = [member.in_memory() for member in members]
    ends = end_of_text_lists(resolved.eos_token_id, [member.table for member in members])
    if ends is not None:
        members = [m.with_end_of_text(ids) for m, ids in zip(members, ends, strict=True)]
    with annotate("tokenize"):
        prompts = [member.encode_prompt(prompt, messages=messages) for member in members]
    return members, prompts, resolved


def check_request(prompt: str | None = None, messages: Messages | None = None) -> None:
    """Checks the prompt or the messages that `generate` was given.

    Raises:
        TypeError, ValueError: naming the argument, what was expected and what came.
    """
    if (prompt is None) == (messages is None):
        given = "neither" if prompt is None else "both"
        raise ValueError(f"exactly one of prompt and messages must be given, got {given}")
    if prompt is not None and not isinstance(prompt, str):
        raise TypeError(f"prompt must be a str, got {type(prompt).__name__}")
    if prompt is not None:
        check_text("prompt", prompt)
    if messages is not None:
        _check_messages(messages)


def check_members(members: Sequence[Member], name: str = "members") -> list[Member]:
    """Checks the members of a method."""
    if isinstance(members, str) or not isinstance(members, Sequence):
        raise TypeError(f"{name} must be a list of Member, got {type(members).__name__}")
    if not members and name == "members":
        raise ValueError("members must hold at least one Member, got an empty list")
    for index, member in enumerate(members):
        check_member(f"{name}[{index}]", member)
    return list(members)


def check_member(name: str, member: Any) -> None:
    """Checks one member."""
    if not isinstance(member, Member):
        raise TypeError(f"{name} must be a Member, got {type(member).__name__}")


def _check_messages(messages: Messages) -> None:
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise TypeError(
            f"messages must be a list of {{'role': ..., 'content': ...}}, "
            f"got {type(messages).__name__}"
        )
    if not messages:
        raise ValueError("messages must hold at least one message, got an empty list")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise TypeError(f"messages[{index}] must be a dict, got {type(message).__name__}")
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                came = f"{message[key]!r}" if key in message else "none"
                raise ValueError(f"messages[{index}] must have a text {key!r}, got {came}")
        check_text(f"messages[{index}]['content']", message["content"])
