"""The arithmetic of a SpecEM round: scores to shares, shares to weights, weights to a winner."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from .trace import Candidate

FEEDBACKS = ("wins", "score", None)
SCORES = ("logprob", "logit")


def mean_score(scores: Sequence[float]) -> float | None:
    """None where there is nothing to judge, or something impossible among it."""
    if not scores or min(scores) == -math.inf:
        return None
    return math.fsum(scores) / len(scores)


def vote_shares(scores: Sequence[float | None], kind: str = "logprob") -> list[float]:
    """A verifier's shares of the candidates, from its mean score of each.

    "logprob": `exp(m_c) / sum exp(m)` over mean log-probabilities. "logit": `m_c / sum m` over mean
    logits, as the released code of SpecEM does; where they are negative that reverses the ranking.
    A candidate that it cannot judge or thinks impossible (None) gets 0; a verifier that can judge
    none is neutral.
    """
    judged = [m for m in scores if m is not None]
    if not judged:
        return [1 / len(scores)] * len(scores)
    highest = max(judged) if kind == "logprob" else 0.0
    powers = [
        0.0 if m is None else math.exp(m - highest) if kind == "logprob" else m for m in scores
    ]
    total = math.fsum(powers)
    if total == 0:  # logits that cancel out
        return [1 / len(scores)] * len(scores)
    return [power / total for power in powers]


def feedback(
    weights: Sequence[float],
    shares: Sequence[Sequence[float]],
    drafted: Sequence[int],
    step: float,
    kind: str = "wins",
) -> list[float]:
    """The weights after a round's feedback (SpecEM, before the vote of the same round).

    `drafted[i]` is the candidate that member i drafted. "wins": member i wins against member k
    before judge j where j gives i's draft at least the share of k's (j and k other than i):
    `w_i * exp(step * wins_i / (K-1)^2)`. Members with the same draft win against each other.
    "score": the mean of the shares that the others give i's draft takes the place of the wins.
    Renormalised in both. With nobody to compare, or one candidate only, nothing moves.
    """
    gains = []
    for i in range(len(drafted)):
        others = [j for j in range(len(drafted)) if j != i]
        if not others or len(set(drafted)) == 1:
            gains.append(1.0)
        elif kind == "score":
            gains.append(math.fsum(shares[j][drafted[i]] for j in others) / len(others))
        else:
            wins = sum(
                shares[j][drafted[i]] >= shares[j][drafted[k]] for j in others for k in others
            )
            gains.append(wins / len(others) ** 2)
    # Against the highest gain of a weight that is left: no step is too large for exp, and their sum
    # is never 0.
    highest = max(gain for weight, gain in zip(weights, gains, strict=True) if weight)
    raised = [
        weight and weight * math.exp(step * (gain - highest))
        for weight, gain in zip(weights, gains, strict=True)
    ]
    total = math.fsum(raised)
    return [weight / total for weight in raised]


def vote(
    weights: Sequence[float], shares: Mapping[int, Sequence[float]], candidates: Sequence[Candidate]
) -> tuple[int, str]:
    """The winner and why; `shares` are by member. Notes each candidate's score; ties go to the
    draft of the member given first."""
    for c, candidate in enumerate(candidates):
        candidate.score = math.fsum(weights[j] * row[c] for j, row in shares.items())
    scores = [candidate.score for candidate in candidates]
    winner = scores.index(max(scores))
    if len(scores) == 1:
        return winner, "all drafts are the same"
    if scores.count(scores[winner]) > 1:
        return winner, "highest score, shared: the member given first"
    return winner, "highest score"
