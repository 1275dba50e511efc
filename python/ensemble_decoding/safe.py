"""SAFE: one model drafts, the others say where an ensemble is both needed and safe, and only there
the distributions are mixed.

Method: "When to Ensemble: Identifying Token-Level Points for Stable and Fast LLM Ensembling". A
token is drafted alone where a verifier's tokenizer would put no boundary in front of it, where all
verifiers would write the same, or where the members are sure enough of it on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import GenerationConfig

from .drafted_run import DraftedRun
from .member import Member
from .method import DecodingMethod
from .mixtures import Mixtures
from .prompt import Messages
from .request import check_members, prepared
from .safe_always import AlwaysRun
from .safe_options import check_method
from .safe_run import SafeRun
from .safe_vote import SafeVote
from .token_choice import shares
from .token_mixture import Combine
from .trace import Trace


class SAFE(DecodingMethod):
    """A drafting language model and others that step in where it is worth it.

    Those options of `generate` that shape a distribution do so in each member before mixing; what
    decides where to mix are the members' own probabilities.

    Args:
        drafter: the `Member` that writes; best the strongest of all. The limit on new tokens counts
            its tokens.
        verifiers: one or more other members.
        draft_length: tokens that are drafted before they are verified. 5 as in the paper.
        ensemble_when: "safe", where the rules above allow and ask for it; "always", at every token;
            "never", the drafter alone.
        alignment, k: what is mixed, as in `TokenEnsemble`: "identity", "union", "top_k" with the
            `k` likeliest byte strings of each member, or "auto", "identity" for equal token tables
            and else "union".
        weights: a number for each member, the drafter first, not negative; only their ratios
            matter. By default equal. Verifiers of weight 0 are not asked.
        sharpen: where no token of the mixture reaches 0.5: "prefix" adds to each token above 0.1
            that the drafter has the probability of all tokens that begin with it, "geometric" takes
            the geometric mean instead of the arithmetic one, None does nothing.
        combine: takes the place of the mean, as in `TokenEnsemble`.

    Raises:
        TypeError, ValueError: naming the argument, what was expected and what came.
    """

    def __init__(
        self,
        drafter: Member,
        verifiers: Sequence[Member],
        *,
        draft_length: int = 5,
        ensemble_when: str = "safe",
        alignment: str = "auto",
        k: int = 10,
        weights: Sequence[float] | None = None,
        sharpen: str | None = "prefix",
        combine: Combine | None = None,
    ) -> None:
        if not isinstance(drafter, Member):
            raise TypeError(f"drafter must be a Member, got {type(drafter).__name__}")
        self.members = [drafter, *check_members(verifiers, "verifiers")]
        check_method(
            verifiers=len(self.members) - 1,
            draft_length=draft_length,
            ensemble_when=ensemble_when,
            alignment=alignment,
            k=k,
            weights=weights,
            sharpen=sharpen,
            combine=combine,
        )
        self.draft_length = draft_length
        self.ensemble_when = ensemble_when
        self.k = k
        self.weights = shares([1.0] * len(self.members) if weights is None else weights)
        self.sharpen = sharpen
        self.combine = combine
        self._mixtures = Mixtures(alignment, "arithmetic", combine, k)
        if alignment == "identity":
            self._mixtures.alignment_of(self.members)

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: Messages | None = None,
        generation_config: GenerationConfig | None = None,
        **options: Any,
    ) -> DraftedRun:
        """See `DecodingMethod.stream`: a round is a draft, under "always" a token."""
        members, prompts, resolved = prepared(
            self.members, prompt, messages, options, generation_config
        )
        shown = {**self._as_trace(members), **resolved.as_trace()}
        trace = Trace("safe", [member.name for member in members], shown)
        weights = self.weights
        if self.ensemble_when == "never" or not any(weights[1:]):
            return SafeRun(members, prompts, trace, resolved, self.draft_length, None)
        vote = SafeVote(self._mixtures.of(members), weights, self.sharpen)
        if self.ensemble_when == "always":
            return AlwaysRun(members, prompts, trace, resolved, vote)
        return SafeRun(members, prompts, trace, resolved, self.draft_length, vote)

    def _as_trace(self, members: Sequence[Member]) -> dict[str, Any]:
        """What of the options counts, as plain data."""
        names = ("ensemble_when", "weights", "sharpen")
        shown = {name: getattr(self, name) for name in names}
        shown["alignment"] = self._mixtures.alignment_of(members)
        if shown["alignment"] == "top_k":
            shown["k"] = self.k
        if self.ensemble_when != "always":
            shown["draft_length"] = self.draft_length
        if self.combine is not None:
            shown["combine"] = getattr(self.combine, "__name__", type(self.combine).__name__)
        return shown
