"""CoSD: one model drafts, another corrects the tokens that it doubts, by a rule or a learned tree.

Method: "Speculate, then Collaborate: Fusing Knowledge of Language Models during Decoding". The
released code takes agreement for a rejection; here the rule is that of the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from transformers import GenerationConfig

from .cosd_options import check_method
from .cosd_run import CoSDRun
from .cosd_verdict import Rule, Verdict
from .member import Member
from .method import DecodingMethod
from .prompt import Messages
from .request import check_member, check_members, check_request, prepared
from .trace import Trace
from .tree import Tree

Route = Callable[[str | Messages], Sequence[int]]


class CoSD(DecodingMethod):
    """A drafting language model and assistants that correct it.

    Those options of `generate` that shape a distribution shape the drafts; what is compared are the
    members' own probabilities.

    Args:
        draft: the `Member` that drafts. The limit on new tokens counts its tokens.
        assistants: one or more other members.
        draft_length: tokens that are drafted before an assistant reads them. 5 is our choice.
        alpha, beta: the rule. A drafted token is replaced by the assistant's likeliest one where
            the two differ, the drafter gives its own less than `alpha`, and the assistant gives its
            own more than `beta` times that. 0.5 and 0.5 as in the paper.
        tree: a `Tree` that decides instead of the rule.
        select: with several assistants, "most_confident": of those that would replace a token the
            one with the likeliest; "cascade": the second is asked only where the first gives its
            likeliest token less than `unsure_below` or has no token that begins there, and so on,
            and the last one asked decides; or a function that gets the prompt (or messages) and
            returns the places of the assistants that take part in the run, of whom the most
            confident counts. The others are not loaded if they are lazy.
        unsure_below: of the cascade.
        max_entropy: no replacement where the assistant's entropy, in nats, is above.
        second_look: after a replacement the drafter writes on behind it, and the assistant compares
            the two texts: the replacement stands only if it gives its tokens a higher mean
            log-probability than those of the first draft from there on.
        temperatures: for each member, the drafter first, what its logits are divided by before
            probabilities are compared; see `calibrate`.

    Raises:
        TypeError, ValueError: naming the argument, what was expected and what came.
    """

    def __init__(
        self,
        draft: Member,
        assistants: Sequence[Member] | Member,
        *,
        draft_length: int = 5,
        alpha: float = 0.5,
        beta: float = 0.5,
        tree: Tree | None = None,
        select: str | Route = "most_confident",
        unsure_below: float = 0.5,
        max_entropy: float | None = None,
        second_look: bool = False,
        temperatures: Sequence[float] | None = None,
    ) -> None:
        check_member("draft", draft)
        if isinstance(assistants, Member):
            assistants = [assistants]
        self.members = [draft, *check_members(assistants, "assistants")]
        check_method(
            assistants=len(self.members) - 1,
            draft_length=draft_length,
            alpha=alpha,
            beta=beta,
            tree=tree,
            select=select,
            unsure_below=unsure_below,
            max_entropy=max_entropy,
            second_look=second_look,
            temperatures=temperatures,
        )
        self.draft_length = draft_length
        self.alpha, self.beta, self.tree = float(alpha), float(beta), tree
        self.select = select
        self.unsure_below = float(unsure_below)
        self.max_entropy = max_entropy
        self.second_look = second_look
        self.temperatures = [float(t) for t in temperatures or [1.0] * len(self.members)]

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: Messages | None = None,
        generation_config: GenerationConfig | None = None,
        **options: Any,
    ) -> CoSDRun:
        """See `DecodingMethod.stream`: a round is a draft."""
        check_request(prompt, messages)
        chosen = self._chosen(prompt if messages is None else messages)
        members, prompts, resolved = prepared(
            [self.members[j] for j in chosen], prompt, messages, options, generation_config
        )
        temperatures = [self.temperatures[j] for j in chosen]
        shown = {**self._as_trace(temperatures), **resolved.as_trace()}
        trace = Trace("cosd", [member.name for member in members], shown)
        verdict: Verdict = self.tree or Rule(self.alpha, self.beta)
        return CoSDRun(self, members, prompts, trace, resolved, verdict, temperatures)

    def _chosen(self, prompt: Any) -> list[int]:
        """The places of the members that take part."""
        if not callable(self.select):
            return list(range(len(self.members)))
        routed = self.select(prompt)
        if isinstance(routed, str) or not isinstance(routed, Sequence):
            raise TypeError(f"select must return a list of places, got {type(routed).__name__}")
        assistants = range(len(self.members) - 1)
        for place in routed:
            if type(place) is not int or place not in assistants or routed.count(place) > 1:
                raise ValueError(
                    f"select must return distinct places from 0 to {len(assistants) - 1}, got "
                    f"{list(routed)}"
                )
        return [0, *(place + 1 for place in routed)]

    def _as_trace(self, temperatures: Sequence[float]) -> dict[str, Any]:
        """What of the options counts, as plain data."""
        names = ("draft_length", "unsure_below", "max_entropy", "second_look")
        shown = {name: getattr(self, name) for name in names}
        if self.tree is None:
            shown |= {"alpha": self.alpha, "beta": self.beta}
        else:
            shown["tree"] = str(self.tree)
        shown["select"] = "route" if callable(self.select) else self.select
        shown["temperatures"] = list(temperatures)
        return shown
