"""The mixture of members that share a token table."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from ensemble_kernels import VocabularyAlignment

from .member import Member
from .token_mixture import Combine, Mixed, Token, TokenMixture, wide
from .union_vocabulary import alignment_of, over_columns, sharpened_columns


class IdentityMixture(TokenMixture):
    """Of members with equal token tables: column i is id i. The probability of all end-of-text ids
    together stands at the first of them."""

    def __init__(self, members: Sequence[Member], mean: str, combine: Combine | None) -> None:
        super().__init__(mean, combine)
        self._table = members[0].table
        self._special = torch.tensor(self._table.suppressed_ids(), dtype=torch.int64)

    def mix(
        self, rows: Sequence[Tensor], weights: Sequence[float], mean: str | None = None
    ) -> Mixed:
        shape, dtype = (len(rows), rows[0].shape[0]), wide(rows[0].dtype)
        members = torch.zeros(shape, dtype=dtype, device=rows[0].device)
        for j, row in enumerate(rows):
            if weights[j]:
                members[j] = self._distribution(row)
        return self._mixed(members, weights, mean)

    def _distribution(self, row: Tensor) -> Tensor:
        own = torch.softmax(row.to(wide(row.dtype)), 0)
        ends = self._table.end_of_text_ids
        if ends:
            own[ends[0]] = own[list(ends)].sum()
            own[list(ends[1:])] = 0
        # What falls on ids that are neither text nor end-of-text is lost: it lowers the say.
        return own.index_fill_(0, self._special.to(own.device), 0)

    def token(self, column: int) -> Token:
        if column in self._table.end_of_text_ids:
            return Token(b"", True)
        return Token(self._table.spell((column,)), False, column)

    def find(self, mixed: Mixed, token: Token) -> int | None:
        if token.ended:
            return next(iter(self._table.end_of_text_ids), None)
        return token.id if token.id is not None else self._table.token_id(token.data)

    def alone(self, row: Tensor, mixed: Mixed) -> Tensor:
        return self._distribution(row).to(mixed.probabilities.dtype)

    def sharpened(self, mixed: Mixed, threshold: float) -> Mixed:
        own, alignment = mixed.probabilities, self._bytes
        columns = over_columns(own, alignment, 0)
        raised = sharpened_columns(columns, alignment, threshold) - columns
        sharpened = own.clone()
        for column in raised.nonzero().flatten().tolist():
            ids = self._ids[alignment.tokens[column]]
            # Of several ids with the same bytes the likeliest stands for all.
            sharpened[ids[int(own[ids].argmax())]] += raised[column]
        return mixed._replace(probabilities=sharpened)

    @cached_property
    def _bytes(self) -> VocabularyAlignment:
        return alignment_of([self._table])

    @cached_property
    def _ids(self) -> dict[bytes, list[int]]:
        ids: dict[bytes, list[int]] = {}
        for number, token in enumerate(self._table.token_bytes):
            if token is not None:
                ids.setdefault(token, []).append(number)
        return ids
