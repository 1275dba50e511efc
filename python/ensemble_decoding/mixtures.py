"""Which mixture the members of a run have."""

from __future__ import annotations

from collections.abc import Sequence

from ensemble_kernels.profiling import annotate

from .aligned_mixture import TopKMixture, UnionMixture
from .identity_mixture import IdentityMixture
from .member import Member
from .token_mixture import Combine, TokenMixture


class Mixtures:
    """The mixtures of one method, made once for each set of token tables, since aligning large
    vocabularies takes seconds.

    Args:
        alignment: "identity", "union", "top_k" or "auto", as in `TokenEnsemble`.
        mean: "arithmetic" or "geometric".
        combine: takes the place of the mean.
        k: byte strings of each member under "top_k".
    """

    def __init__(self, alignment: str, mean: str, combine: Combine | None, k: int) -> None:
        self._alignment = alignment
        self._mean = mean
        self._combine = combine
        self._k = k
        self._made: dict[tuple[str, ...], TokenMixture] = {}

    def of(self, members: Sequence[Member]) -> TokenMixture:
        """How the logits of `members` are mixed."""
        key = tuple(member.table.fingerprint for member in members)
        if key not in self._made:
            with annotate("align"):
                self._made[key] = self._make(members)
        return self._made[key]

    def _make(self, members: Sequence[Member]) -> TokenMixture:
        alignment = self.alignment_of(members)
        if alignment == "top_k":
            return TopKMixture(members, self._mean, self._combine, self._k)
        kind = IdentityMixture if alignment == "identity" else UnionMixture
        return kind(members, self._mean, self._combine)

    def alignment_of(self, members: Sequence[Member]) -> str:
        """The alignment that "auto" stands for; ValueError where the tables do not allow it."""
        equal = len({member.table.fingerprint for member in members}) == 1
        if self._alignment == "identity" and not equal:
            raise ValueError(
                "alignment must be union or top_k where members have different token tables or "
                "end-of-text ids (GaC and UniTE, by name), got 'identity', a plain average"
            )
        if self._alignment == "auto":
            return "identity" if equal else "union"
        return self._alignment
