"""The joint distribution of SAFE, and the choice from it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .context import DecodingContext
from .sampling import sample, uniform
from .token_choice import mix_votes, pick
from .token_mixture import Mixed, Token, TokenMixture

# Sharpening acts where no token is more probable than all others together, and on tokens above the
# second constant (the paper's lambda).
_UNSURE_BELOW = 0.5
_PREFIX_ABOVE = 0.1


class SafeVote:
    """Mixes the members' distributions.

    Args:
        mixture: of all members, the drafter first.
        weights: of all members; they sum to 1.
        sharpen: "prefix", "geometric" or None, see `SAFE`.
    """

    def __init__(
        self, mixture: TokenMixture, weights: Sequence[float], sharpen: str | None
    ) -> None:
        self.mixture = mixture
        self.weights = list(weights)
        self._sharpen = sharpen

    def mix(
        self, contexts: Sequence[DecodingContext], rows: Sequence[Tensor], weights: Sequence[float]
    ) -> Mixed:
        """The mixture of the votes `rows[j] [V_j]`, sharpened; its probabilities sum to 1."""
        mixed = mix_votes(self.mixture, contexts, rows, weights)
        if self._sharpen is None or float(mixed.probabilities.max()) >= _UNSURE_BELOW:
            return mixed
        if self._sharpen == "geometric":
            return mix_votes(self.mixture, contexts, rows, weights, "geometric")
        sharpened = self.mixture.sharpened(mixed, _PREFIX_ABOVE)
        total = sharpened.probabilities.sum()
        return sharpened._replace(probabilities=sharpened.probabilities / total)

    def chosen(self, context: DecodingContext, mixed: Mixed, position: int) -> int:
        """The entry of the mixture that the drafter's `context` chooses from it."""
        return pick(context.chooser, mixed.probabilities, position)

    def kept_or_chosen(
        self, mixed: Mixed, drafted: Token, row: Tensor, seed: int, position: int
    ) -> int | None:
        """None to keep a sampled token, else the entry that takes its place, so that what comes out
        follows the mixture: it is kept with the probability min(1, P / P_draft), and what replaces
        it is drawn from the part of P that P_draft lacks. `row [V]` are the logits that it was
        sampled from, without special tokens."""
        drafter = self.mixture.alone(row, mixed)
        index = self.mixture.find(mixed, drafted)
        if index is not None:
            number = uniform(seed, position, b"accept")
            if number * float(drafter[index]) < float(mixed.probabilities[index]):
                return None
        rest = (mixed.probabilities - drafter).clamp(min=0)
        if not bool(rest.sum() > 0):
            return None
        return sample(rest.double().log(), uniform(seed, position, b"replace"))

    def token(self, mixed: Mixed, index: int) -> Token:
        """What an entry of the mixture stands for."""
        return self.mixture.token(index if mixed.columns is None else int(mixed.columns[index]))
