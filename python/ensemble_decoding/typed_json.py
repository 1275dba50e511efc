"""Dataclasses to JSON, and back by their annotations."""

from __future__ import annotations

import json
import math
from dataclasses import MISSING, asdict, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints


def to_json(value: Any, *, ensure_ascii: bool = False) -> str:
    """A dataclass as JSON text, bytes in hexadecimal."""
    return json.dumps(asdict(value), indent=1, ensure_ascii=ensure_ascii, default=bytes.hex)


def from_json(value: Any, kind: Any, name: str) -> Any:
    """What `json.loads` gave, as a `kind`.

    Args:
        value: parsed JSON; bytes are in it as hexadecimal text.
        kind: Any, a dataclass, list[...], dict[str, ...], `... | None`, bytes, float or another
            type that JSON has.
        name: what the value is called where it is none.

    Raises:
        ValueError: naming the place in `value`, what was expected and what came.
    """
    origin, of = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin is UnionType:
        (other,) = set(of) - {NoneType}
        return None if value is None else from_json(value, other, name)
    if origin is list:
        items = enumerate(_checked(value, list, name))
        return [from_json(item, of[0], f"{name}[{index}]") for index, item in items]
    if origin is dict:
        items = _checked(value, dict, name).items()
        return {key: from_json(item, of[1], f"{name}[{key!r}]") for key, item in items}
    if is_dataclass(kind):
        return _dataclass_from_json(_checked(value, dict, name), kind, name)
    if kind is bytes:
        try:
            return bytes.fromhex(_checked(value, str, name))
        except ValueError as error:
            raise ValueError(f"{name} must be hexadecimal, got {_shown(value)}") from error
    if kind is float and not _is_finite(_checked(value, float, name)):
        raise ValueError(f"{name} must be finite, got {_shown(value)}")
    return _checked(value, kind, name)


def _dataclass_from_json(value: dict[str, Any], kind: Any, name: str) -> Any:
    kinds = get_type_hints(kind)
    unknown = next((key for key in value if key not in kinds), None)
    if unknown is not None:
        raise ValueError(f"{name} must have the fields of a {kind.__name__}, got {unknown!r}")
    for field in fields(kind):
        required = field.default is MISSING and field.default_factory is MISSING
        if required and field.name not in value:
            raise ValueError(f"{name} must have a field {field.name!r}, got none")
    return kind(
        **{key: from_json(item, kinds[key], f"{name}.{key}") for key, item in value.items()}
    )


def _checked(value: Any, kind: type, name: str) -> Any:
    # To JSON, unlike to Python, a bool is no number, but a number without a point is one.
    allowed = (float, int) if kind is float else kind
    if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
        article = "an" if kind is int else "a"
        raise ValueError(f"{name} must be {article} {kind.__name__}, got {_shown(value)}")
    return value


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an int with hundreds of digits
        return False


def _shown(value: Any) -> str:
    return type(value).__name__ if isinstance(value, list | dict) else repr(value)[:40]
