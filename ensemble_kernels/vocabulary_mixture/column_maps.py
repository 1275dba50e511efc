"""How the maps between the union vocabulary and each model's ids are built, as tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from .token_tables import TokenTable, check_id


class AlignmentMaps(NamedTuple):
    """The tensors of an alignment on one device, all int32, as the operators take them.

    offsets, ids: per model, `[U + 1]` and `[mapped ids]`: column c of the union is made of the
        model's ids `ids[offsets[c] : offsets[c + 1]]`, in ascending order.
    prefix_end: `[U]`, the columns `c .. prefix_end[c] - 1` are those whose bytes start with the
        bytes of column c.
    score_columns: per model `[U]`, the column whose score a column takes in `top_k_union`: itself
        where the model has it, else that of the first sub-token of its encoding; -1: none.
    """

    offsets: list[Tensor]
    ids: list[Tensor]
    prefix_end: Tensor
    score_columns: list[Tensor]

    def to(self, device: torch.device) -> AlignmentMaps:
        return AlignmentMaps(
            [t.to(device) for t in self.offsets],
            [t.to(device) for t in self.ids],
            self.prefix_end.to(device),
            [t.to(device) for t in self.score_columns],
        )


class Union(NamedTuple):
    """What of an alignment takes long to find: the sorted tokens; per model `[token table]` int64
    the column of each id, -1 where it has none; and `prefix_end`."""

    tokens: tuple[bytes, ...]
    columns: list[Tensor]
    prefix_end: Tensor

    @classmethod
    def of(cls, tables: Sequence[TokenTable]) -> Union:
        tokens = union_tokens(tables)
        ends = any(table.end_of_text_ids for table in tables)
        columns = columns_of_ids(tables, tokens, len(tokens) if ends else None)
        return cls(tokens, columns, prefix_ends(tokens, len(tokens) + ends))


def union_tokens(tables: Sequence[TokenTable]) -> tuple[bytes, ...]:
    texts = chain.from_iterable(table.texts for table in tables)
    return tuple(sorted({text for text in texts if text is not None}))


def columns_of_ids(
    tables: Sequence[TokenTable], tokens: Sequence[bytes], end_of_text: int | None
) -> list[Tensor]:
    """Per model `[token table]` int64: the column of each id, -1 where it has none."""
    column_of: dict[bytes | None, int] = {token: column for column, token in enumerate(tokens)}
    column_of[None] = -1
    result = []
    for table in tables:
        columns = torch.tensor([column_of[text] for text in table.texts])
        if end_of_text is not None:
            columns[list(table.end_of_text_ids)] = end_of_text
        result.append(columns)
    return result


def ids_of_columns(columns: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The inverse of one model's `columns_of_ids`, as offsets `[size + 1]` and ids, both int32."""
    mapped = (columns >= 0).nonzero().squeeze(1)
    order = torch.argsort(columns[mapped], stable=True)
    counts = torch.bincount(columns[mapped], minlength=size)
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return offsets.int(), mapped[order].int()


def prefix_ends(tokens: Sequence[bytes], size: int) -> Tensor:
    """Where, in the sorted `tokens`, the range ends that starts with each of them, `[size]`.

    A column behind the tokens (end-of-text) is the prefix of itself only.
    """
    ends = list(range(1, size + 1))
    open_prefixes: list[int] = []
    for column, token in enumerate(tokens):
        while open_prefixes and not token.startswith(tokens[open_prefixes[-1]]):
            ends[open_prefixes.pop()] = column
        open_prefixes.append(column)
    for column in open_prefixes:
        ends[column] = len(tokens)
    return torch.tensor(ends, dtype=torch.int32)


def own_columns(offsets: Tensor) -> Tensor:
    """`score_columns` of a model with no table of first sub-tokens."""
    columns = torch.arange(offsets.shape[0] - 1, dtype=torch.int32)
    return columns.where(offsets.diff() > 0, -1)


def score_columns(
    name: str,
    first_subtokens: Mapping[bytes, int],
    tokens: Sequence[bytes],
    columns: Tensor,
    offsets: Tensor,
) -> Tensor:
    """`score_columns` of a model with a table of first sub-tokens, which errors call `name`."""
    if not isinstance(first_subtokens, Mapping):
        raise TypeError(f"{name} must map bytes to ids, got {type(first_subtokens).__name__}")
    for token in first_subtokens.keys() - set(tokens):
        raise ValueError(f"{name} must hold tokens of the union, got {token!r}")
    scores = own_columns(offsets).tolist()
    column_of_id = columns.tolist()
    for column, token in enumerate(tokens):
        if scores[column] >= 0 or token not in first_subtokens:
            continue
        token_id = first_subtokens[token]
        check_id(f"{name}[{token!r}]", token_id, len(column_of_id))
        target = column_of_id[token_id]
        if target < 0 or target == len(tokens):
            raise ValueError(f"{name}[{token!r}] must be the id of a text token, got {token_id}")
        scores[column] = target
    return torch.tensor(scores, dtype=torch.int32)
