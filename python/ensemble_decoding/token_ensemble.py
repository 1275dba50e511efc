"""Token-level ensembles: at each step the members' next-token distributions are mixed, and one
token is chosen for all.

Methods: UniTE ("Determine-Then-Ensemble: Necessity of Top-k Union for Large Language Model
Ensembling"), GaC ("Breaking the Ceiling of the LLM Community by Treating Token Generation as a
Classification for Ensembling"), and the plain average of models that share a tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import GenerationConfig

from .member import Member
from .method import DecodingMethod
from .mixtures import Mixtures
from .prompt import Messages
from .request import check_members, prepared
from .token_choice import shares
from .token_ensemble_options import check_method
from .token_ensemble_run import TokenEnsembleRun
from .token_mixture import Combine
from .trace import Trace


class TokenEnsemble(DecodingMethod):
    """An ensemble of language models that decodes token by token.

    Those options of `generate` that shape a distribution do so in each member before mixing.

    Args:
        members: two or more `Member`; the first is the main one. The limit on new tokens counts
            its tokens.
        alignment: "identity" for members with equal token tables, the mean of their softmaxes;
            "union" (GaC), over all byte strings that any member has as a token; "top_k" (UniTE),
            over the union of each member's k likeliest byte strings; "auto": "identity" where the
            tables are equal, else "union".
        k: byte strings of each member under "top_k". 10 as in UniTE.
        weights: a number for each member, not negative; only their ratios matter. By default equal.
        mean: "arithmetic", or "geometric" over what all voters have and none excludes; a step
            without such a token takes the arithmetic one.
        threshold: ensemble only where the main member's likeliest token has a probability below
            it, or where it has no vote; else it chooses alone. 0.5 in GaC; by default always.
        combine: takes the place of the mean: `combine(probabilities, weights)` gets the voters'
            distributions `[voters, n]` over the same n tokens and their weights, which sum to 1,
            and returns probabilities `[n]`. A row sums to 1 less what the voter puts on special
            tokens.

    Raises:
        TypeError, ValueError: naming the argument, what was expected and what came.
    """

    def __init__(
        self,
        members: Sequence[Member],
        *,
        alignment: str = "auto",
        k: int = 10,
        weights: Sequence[float] | None = None,
        mean: str = "arithmetic",
        threshold: float | None = None,
        combine: Combine | None = None,
    ) -> None:
        self.members = check_members(members)
        check_method(
            members=len(members),
            alignment=alignment,
            k=k,
            weights=weights,
            mean=mean,
            threshold=threshold,
            combine=combine,
        )
        self.alignment = alignment
        self.k = k
        self.weights = shares([1.0] * len(members) if weights is None else weights)
        self.mean = mean
        self.threshold = threshold
        self.combine = combine
        self._mixtures = Mixtures(alignment, mean, combine, k)
        if alignment == "identity":
            self._mixtures.alignment_of(self.members)

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: Messages | None = None,
        generation_config: GenerationConfig | None = None,
        **options: Any,
    ) -> TokenEnsembleRun:
        """See `DecodingMethod.stream`: a round is a token."""
        members, prompts, resolved = prepared(
            self.members, prompt, messages, options, generation_config
        )
        trace = Trace(
            "token_ensemble",
            [member.name for member in members],
            {**self._as_trace(members), **resolved.as_trace()},
        )
        return TokenEnsembleRun(
            members,
            prompts,
            trace,
            resolved,
            self._mixtures.of(members),
            self.weights,
            self.threshold,
        )

    def _as_trace(self, members: Sequence[Member]) -> dict[str, Any]:
        """What of the options counts, as plain data."""
        shown = {name: getattr(self, name) for name in ("weights", "mean", "threshold")}
        shown["alignment"] = self._mixtures.alignment_of(members)
        if shown["alignment"] == "top_k":
            shown["k"] = self.k
        if self.combine is not None:
            del shown["mean"]
            shown["combine"] = getattr(self.combine, "__name__", type(self.combine).__name__)
        return shown
