"""SpecEM's arithmetic a second time, slowly: plain passes without cache or packing, in float64.

It knows nothing of the package that it judges: a round comes in as ids, bytes and numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch


class Reader:
    """A model and its tokenizer, read from outside: bytes of ids, and plain forward passes."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        # A model left with somebody else's attention would judge itself.
        assert model.config._attn_implementation == "sdpa"
        self.model = model
        self.token_bytes = bytes_of_ids(tokenizer)
        ends = model.generation_config.eos_token_id
        self.end_ids = [ends] if isinstance(ends, int) else list(ends)
        # Columns behind the tokenizer's last id are padding.
        self.columns = min(model.config.vocab_size, max(tokenizer.get_vocab().values()) + 1)
        allowed = {*self.token_bytes, *self.end_ids}
        self.forbidden = [number for number in range(self.columns) if number not in allowed]

    def spell(self, ids: Sequence[int]) -> bytes:
        """The bytes of text ids and end-of-text; KeyError for any other id."""
        return b"".join(b"" if i in self.end_ids else self.token_bytes[i] for i in ids)

    def judge(self, before: Sequence[int], ids: Sequence[int]) -> Judgement:
        """One plain pass over `before` and `ids`, and what it says about each of `ids`."""
        fed = torch.tensor([[*before, *ids[:-1]]])
        with torch.no_grad():
            logits = self.model(input_ids=fed, use_cache=False, logits_to_keep=len(ids)).logits[0]
        rows = logits[:, : self.columns].double()
        logprobs = rows.log_softmax(1)
        scores = [
            logprobs[row, self.end_ids if token in self.end_ids else [token]].logsumexp(0)
            for row, token in enumerate(ids)
        ]
        choice = rows.index_fill(1, torch.tensor(self.forbidden), -torch.inf)
        best = choice.max(1).values
        behind = [float(best[row] - choice[row, token]) for row, token in enumerate(ids)]
        return Judgement(math.fsum(map(float, scores)) / len(ids), behind)


class Judgement(NamedTuple):
    """`log_likelihood` is the mean over the tokens. `behind[i]` is how far the logit of token i
    lies below the highest one among text and end-of-text: 0 for what greedy decoding takes, more
    only where rounding decided a near tie."""

    log_likelihood: float
    behind: list[float]


@dataclass
class PlainRound:
    """What a trace says about a round before anything is scored.

    `drafts[i]` is the candidate that member i drafted; `ids[j][c]` are the ids of candidate c in
    member j's vocabulary; `before[j]` are the ids that member j has read, prompt included;
    `weights` are those of the round before; `number` counts from 1.
    """

    drafts: list[int]
    ids: list[list[list[int]]]
    before: list[list[int]]
    weights: list[float]
    number: int


@dataclass
class ScoredRound:
    """`judgements[j][c]` and `shares[j][c]` are member j's for candidate c, `scores[c]` the sums.

    `vote_gap` is between the best two scores, `feedback_gap` between the closest two shares that
    the feedback compares: what rounding could turn round is told apart from what it could not.
    """

    judgements: list[list[Judgement]]
    shares: list[list[float]]
    weights: list[float]
    scores: list[float]
    winner: int
    vote_gap: float
    feedback_gap: float


def score_round(readers: Sequence[Reader], round_: PlainRound) -> ScoredRound:
    """Scores, feeds back, votes."""
    judgements = [
        [reader.judge(before, ids) for ids in candidates]
        for reader, before, candidates in zip(readers, round_.before, round_.ids, strict=True)
    ]
    shares = []
    for row in judgements:
        powers = [math.exp(judgement.log_likelihood) for judgement in row]
        shares.append([power / sum(powers) for power in powers])
    weights, feedback_gap = fed_back(round_, shares)
    scores = [
        sum(w * row[c] for w, row in zip(weights, shares, strict=True))
        for c in range(len(round_.ids[0]))
    ]
    ranked = sorted(scores, reverse=True)
    gap = ranked[0] - ranked[1] if len(ranked) > 1 else math.inf
    # Candidates stand in the order of who drafted them first, and the first of equals wins.
    winner = scores.index(ranked[0])
    return ScoredRound(judgements, shares, weights, scores, winner, gap, feedback_gap)


def fed_back(round_: PlainRound, shares: list[list[float]]) -> tuple[list[float], float]:
    """The weights after the round's feedback, and the closest comparison in it.

    Member i wins once for each judge j and rival k, both others than i, where j gives i's draft at
    least the share of k's. The learning rate is 1.
    """
    count = len(round_.drafts)
    raised, closest = [], math.inf
    for i, weight in enumerate(round_.weights):
        wins = 0
        for j in range(count):
            for k in range(count):
                if i in (j, k):
                    continue
                own, rival = round_.drafts[i], round_.drafts[k]
                wins += shares[j][own] >= shares[j][rival]
                if own != rival:
                    closest = min(closest, abs(shares[j][own] - shares[j][rival]))
        gamma = wins / (count - 1) ** 2 if count > 1 else 1.0
        raised.append(weight * math.exp(math.sqrt(1 / count) / round_.number * gamma))
    return [weight / sum(raised) for weight in raised], closest


def bytes_of_ids(tokenizer: Any) -> dict[int, bytes]:
    """The bytes of each text token: GPT-2's alphabet where the decoder says ByteLevel, else
    SentencePiece's way with a mark for the space and `<0x0A>` for a byte."""
    backend = tokenizer.backend_tokenizer
    special = {i for i, token in backend.get_added_tokens_decoder().items() if token.special}
    byte_level = "ByteLevel" in type(backend.decoder).__name__
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    alphabet = {chr(byte): byte for byte in visible}
    alphabet |= {chr(256 + place): byte for place, byte in enumerate(hidden)}
    table = {}
    for token, number in backend.get_vocab().items():
        if number in special:
            continue
        if byte_level:
            table[number] = bytes(alphabet[character] for character in token)
        elif re.fullmatch("<0x[0-9A-F]{2}>", token):
            table[number] = bytes([int(token[3:5], 16)])
        else:
            table[number] = token.replace("▁", " ").encode()
    return table
