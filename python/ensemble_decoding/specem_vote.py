"""The arithmetic of a SpecEM round: scores to shares, shares to weights, weights to a winner."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .trace import Candidate


def mean_log_probability(log_probabilities: Sequence[float]) -> float | None:
    """None where there is nothing to judge, or something impossible among it."""
    if not log_probabilities or min(log_probabilities) == -math.inf:
        return None
    return math.fsum(log_probabilities) / len(log_probabilities)


def vote_shares(log_likelihoods: Sequence[float | None]) -> list[float]:
    """A verifier's shares of the candidates: `exp(m_c) / sum exp(m)` over mean log-probabilities.

    A candidate that it cannot judge or thinks impossible (None) gets 0; a verifier that can judge
    none is neutral. The released code of SpecEM averages raw logits and divides by their sum, which
    reverses the ranking where logits are negative.
    """
    judged = [m for m in log_likelihoods if m is not None]
    if not judged:
        return [1 / len(log_likelihoods)] * len(log_likelihoods)
    highest = max(judged)
    powers = [0.0 if m is None else math.exp(m - highest) for m in log_likelihoods]
    total = math.fsum(powers)
    return [power / total for power in powers]


def feedback(
    weights: Sequence[float],
    shares: Sequence[Sequence[float]],
    drafted: Sequence[int],
    step: float,
) -> list[float]:
    """The weights after a round's feedback (SpecEM, before the vote of the same round).

    `drafted[i]` is the candidate that member i drafted. Member i wins against member k before
    judge j where j gives i's draft at least the share of k's: `w_i * exp(step * wins_i / (K-1)^2)`,
    renormalised. Members with the same draft win against each other.
    """
    others = [[j for j in range(len(drafted)) if j != i] for i in range(len(drafted))]
    raised = []
    for i, weight in enumerate(weights):
        wins = sum(
            shares[j][drafted[i]] >= shares[j][drafted[k]] for j in others[i] for k in others[i]
        )
        gain = wins / len(others[i]) ** 2 if others[i] else 1.0
        raised.append(weight * math.exp(step * gain))
    total = math.fsum(raised)
    return [weight / total for weight in raised]


def vote(
    weights: Sequence[float], shares: Sequence[Sequence[float]], candidates: Sequence[Candidate]
) -> tuple[int, str]:
    """The winner and why. Notes each candidate's score; ties go to the draft of the member given
    first."""
    for c, candidate in enumerate(candidates):
        candidate.score = math.fsum(w * row[c] for w, row in zip(weights, shares, strict=True))
    scores = [candidate.score for candidate in candidates]
    winner = scores.index(max(scores))
    if len(scores) == 1:
        return winner, "all drafts are the same"
    if scores.count(scores[winner]) > 1:
        return winner, "highest score, shared: the member given first"
    return winner, "highest score"
