"""The files of a `VocabularyAlignment`. The one to pass on has its token tables as JSON: everything
else follows from them in about a second, and a file with nothing derived in it cannot disagree with
itself. The one of the cache has what takes long to derive, for those who have the tables."""

from __future__ import annotations

import json
import os
import pickle
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .column_maps import Union
from .token_tables import TokenTable, fingerprint, read_tables

_FORMAT = "ensemble_kernels.VocabularyAlignment"

FirstSubtokens = Sequence[Mapping[bytes, int]] | None


def write(
    path: str | os.PathLike[str], tables: Sequence[TokenTable], first_subtokens: FirstSubtokens
) -> None:
    content: dict[str, Any] = {
        "format": _FORMAT,
        "fingerprint": fingerprint(tables),
        "token_bytes": [list(map(_to_text, table.token_bytes)) for table in tables],
        "end_of_text_ids": [table.end_of_text_ids for table in tables],
        "canonical_ids": [_to_json(table.canonical_ids) for table in tables],
        "first_subtokens": first_subtokens and [_to_json(table) for table in first_subtokens],
    }
    Path(path).write_text(json.dumps(content))


def read(path: str | os.PathLike[str]) -> tuple[tuple[TokenTable, ...], FirstSubtokens]:
    try:
        content = json.loads(Path(path).read_text())
        if content["format"] != _FORMAT:
            raise ValueError(f"its format is {content['format']!r}")
        tables = read_tables(
            [list(map(_to_bytes, table)) for table in content["token_bytes"]],
            content["end_of_text_ids"],
            [_from_json(table) for table in content["canonical_ids"]],
        )
        if content["fingerprint"] != fingerprint(tables):
            raise ValueError("its tables do not have its fingerprint")
        subtokens = content["first_subtokens"]
        return tables, subtokens and [_from_json(table) for table in subtokens]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is no intact VocabularyAlignment: {error!r}") from error


def write_union(path: Path, columns: Sequence[Tensor], prefix_end: Tensor) -> None:
    """Writes a file of the cache, or nothing where that is not possible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written aside, so that another process never reads half a file.
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            torch.save({"columns": list(columns), "prefix_end": prefix_end}, file)
        os.replace(file.name, path)
    except OSError:
        return


def read_union(path: Path, tables: Sequence[TokenTable]) -> Union | None:
    """Reads a file of the cache; None where there is none, or a damaged one."""
    try:
        content = torch.load(path, weights_only=True)
        columns, prefix_end = content["columns"], content["prefix_end"]
        ends = any(table.end_of_text_ids for table in tables)
        tokens: list[bytes | None] = [None] * (len(prefix_end) - ends)
        for table, of_ids in zip(tables, columns, strict=True):
            for text, column in zip(table.texts, of_ids.tolist(), strict=True):
                if text is not None:
                    tokens[column] = text
        if None in tokens:
            return None
        return Union(tuple(tokens), columns, prefix_end)  # type: ignore[arg-type]
    except (OSError, EOFError, RuntimeError, ValueError, TypeError, KeyError, IndexError):
        return None
    except pickle.UnpicklingError:
        return None


# Latin-1 maps each byte to the character of the same number, so any bytes fit into JSON.
def _to_text(token: bytes | None) -> str | None:
    return None if token is None else token.decode("latin-1")


def _to_bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode("latin-1")


def _to_json(table: Mapping[bytes, int]) -> dict[str, int]:
    return {token.decode("latin-1"): token_id for token, token_id in table.items()}


def _from_json(table: Mapping[str, Any]) -> dict[bytes, int]:
    return {text.encode("latin-1"): token_id for text, token_id in table.items()}
