"""The mixtures of members whose tokens are compared as bytes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ensemble_kernels import mix_distributions, top_k_union

from .member import Member
from .token_mixture import Combine, Mixed, Token, TokenMixture, wide
from .union_vocabulary import alignment_of, over_columns, sharpened_columns

# `top_k_union` ignores a model of weight 0 altogether. With this weight it contributes candidates
# and next to no probability, so that the others' distributions can be had one by one.
_NEXT_TO_NOTHING = 1e-37


class _AlignedMixture(TokenMixture):
    """Columns are those of an alignment of the members' vocabularies."""

    def __init__(self, members: Sequence[Member], mean: str, combine: Combine | None) -> None:
        super().__init__(mean, combine)
        self._alignment = alignment_of([member.table for member in members])

    def token(self, column: int) -> Token:
        ended = column == self._alignment.end_of_text
        return Token(b"" if ended else self._alignment.tokens[column], ended)

    def find(self, mixed: Mixed, token: Token) -> int | None:
        alignment = self._alignment
        column = alignment.end_of_text if token.ended else alignment.column(token.data)
        if mixed.columns is None or column is None:
            return column
        places = (mixed.columns == column).nonzero()
        return int(places[0]) if len(places) else None

    def alone(self, row: Tensor, mixed: Mixed) -> Tensor:
        own = torch.softmax(row.to(wide(row.dtype)), 0)
        own = over_columns(own, self._alignment, 0).to(mixed.probabilities.dtype)
        return own if mixed.columns is None else own[mixed.columns]

    def sharpened(self, mixed: Mixed, threshold: float) -> Mixed:
        if mixed.columns is None:
            columns = mixed.probabilities
        else:
            columns = mixed.probabilities.new_zeros(self._alignment.size)
            columns[mixed.columns] = mixed.probabilities
        columns = sharpened_columns(columns, self._alignment, threshold)
        if mixed.columns is not None:
            columns = columns[mixed.columns]
        return mixed._replace(probabilities=columns)


class UnionMixture(_AlignedMixture):
    """GaC: the mean over all byte strings that any member has as a token."""

    def mix(
        self, rows: Sequence[Tensor], weights: Sequence[float], mean: str | None = None
    ) -> Mixed:
        batch = [row[None] for row in rows]
        if self._combine is None:
            mixture = mix_distributions(
                batch, self._alignment, weights=weights, mean=mean or self._mean
            )
            return Mixed(mixture.probabilities[0], None, bool(mixture.fell_back[0]))
        members = torch.zeros((len(rows), self._alignment.size), device=rows[0].device)
        for j in range(len(rows)):
            if weights[j]:
                alone = [float(i == j) for i in range(len(rows))]
                own = mix_distributions(batch, self._alignment, weights=alone)
                # Alone it was renormalised; beside others its lost mass lowers its say.
                kept = 1 - own.lost_mass[j, 0]
                members[j] = own.probabilities[0] * kept if kept > 0 else 0
        return self._mixed(members, weights, mean)

    def probability(self, j: int, row: Tensor, mixed: Mixed, index: int) -> float:
        if mixed.members is not None:
            return super().probability(j, row, mixed, index)
        maps = self._alignment.maps("cpu")
        start, end = maps.offsets[j][index : index + 2].tolist()
        row = row.to(wide(row.dtype))
        own = row[maps.ids[j][start:end].to(row.device)]
        return float((own.logsumexp(0) - row.logsumexp(0)).exp()) if start < end else 0.0


class TopKMixture(_AlignedMixture):
    """UniTE: the mean over the union of each voter's k likeliest byte strings."""

    def __init__(
        self, members: Sequence[Member], mean: str, combine: Combine | None, k: int
    ) -> None:
        super().__init__(members, mean, combine)
        # There are no more columns, and the operators make room for as many as are asked for.
        self._k = min(k, self._alignment.size)
        self._alignment = self._alignment.with_first_subtokens(
            [
                _first_subtokens(member, self._alignment.missing_tokens(j))
                for j, member in enumerate(members)
            ]
        )

    def mix(
        self, rows: Sequence[Tensor], weights: Sequence[float], mean: str | None = None
    ) -> Mixed:
        batch = [row[None] for row in rows]
        voters = [j for j, weight in enumerate(weights) if weight]
        unions = []
        for j in voters:
            alone = [_NEXT_TO_NOTHING if weight else 0.0 for weight in weights]
            alone[j] = 1.0
            unions.append(top_k_union(batch, self._alignment, k=self._k, weights=alone))
        # The same candidates in each, behind which there is only padding.
        columns = unions[0].columns[0]
        columns = columns[columns >= 0]
        members = torch.zeros((len(rows), columns.shape[0]), device=columns.device)
        for j, union in zip(voters, unions, strict=True):
            own = union.probabilities[0, : columns.shape[0]]
            members[j] = own.where(own > 2 * _NEXT_TO_NOTHING, 0)
        return self._mixed(members, weights, mean, columns)


def _first_subtokens(member: Member, missing: Sequence[bytes]) -> dict[bytes, int]:
    """The first token with which the member's tokenizer writes each token that it lacks."""
    encoded = ((token, member.encoder.encode(token).ids) for token in missing)
    return {token: ids[0] for token, ids in encoded if ids}
