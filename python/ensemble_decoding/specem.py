"""SpecEM: every member drafts the next segment, all judge all drafts, the winner is committed.

Method: "SpecFuse: Ensembling LLMs via Next-Segment Prediction" and its successor SpecEM, without
training. A round drafts, verifies every distinct draft in one packed pass per member, feeds the
round's scores back into the members' weights, votes and commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import GenerationConfig

from .member import Member
from .method import DecodingMethod
from .prompt import Messages
from .request import check_members, prepared
from .specem_options import check_method
from .specem_run import SpecEMRun


class SpecEM(DecodingMethod):
    """An ensemble of language models that decodes segment by segment.

    Args:
        members: one or more `Member`, which draft and judge. The limit on new tokens counts those
            of the first.
        verifiers: further members that only judge.
        segment_length: tokens that each member drafts in a round. 10 as in the released code of
            SpecEM; 5 to 15 work.
        segment_boundary: "character", or "word" to drop a trailing partial word from each draft.
        learning_rate: how fast the weights follow who wins; 0 keeps them equal. In round t of K
            drafting members the step is `learning_rate * sqrt(1 / K) / t`. 1.0 is our choice: the
            released code's default switches the feedback off, the paper's ablation finds it worth
            having.
        feedback: "wins" (the paper's), "score" (the simpler variant that it ablates), or None.
        score: "logprob", mean log-probabilities, or "logit", mean logits divided by their sum as
            in the released code, which reverses the ranking where they are negative.
        exit_threshold: a member whose weight falls under `exit_threshold / K` (K members and
            verifiers at the start) takes no further part in the run (SpecFuse's model exit).

    Raises:
        TypeError, ValueError: naming the argument, what was expected and what came.
    """

    def __init__(
        self,
        members: Sequence[Member],
        *,
        verifiers: Sequence[Member] = (),
        segment_length: int = 10,
        segment_boundary: str = "character",
        learning_rate: float = 1.0,
        feedback: str | None = "wins",
        score: str = "logprob",
        exit_threshold: float | None = None,
    ) -> None:
        self.members = check_members(members)
        self.verifiers = check_members(verifiers, "verifiers")
        check_method(
            segment_length=segment_length,
            segment_boundary=segment_boundary,
            learning_rate=learning_rate,
            feedback=feedback,
            score=score,
            exit_threshold=exit_threshold,
        )
        self.segment_length = segment_length
        self.segment_boundary = segment_boundary
        self.learning_rate = float(learning_rate)
        self.feedback = feedback
        self.score = score
        self.exit_threshold = exit_threshold

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: Messages | None = None,
        generation_config: GenerationConfig | None = None,
        **options: Any,
    ) -> SpecEMRun:
        """See `DecodingMethod.stream`: a round is a segment."""
        members, prompts, resolved = prepared(
            [*self.members, *self.verifiers], prompt, messages, options, generation_config
        )
        return SpecEMRun(self, members, prompts, resolved)
