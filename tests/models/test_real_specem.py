"""SpecEM over two real models of different families, in float32, against a slow scorer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from ensemble_decoding import Member, SpecEM

# So that a failing check shows its values.
pytest.register_assert_rewrite("tests.models.run_checks")
from tests.models.recorded_run import (  # noqa: E402
    BEYOND_THE_WINDOW,
    PROMPTS,
    Recording,
    record,
    request,
)
from tests.models.run_checks import (  # noqa: E402
    check_caches,
    check_passes,
    check_prompts,
    check_text,
    inside_character,
)
from tests.models.slow_scorer import (  # noqa: E402
    PlainRound,
    Reader,
    ScoredRound,
    score_round,
)

pytestmark = pytest.mark.real_models

# Float32 against float64, packed and cached passes against plain ones. Some 3e-6 was seen in the
# log-likelihoods, 1e-6 in the shares, and no draft behind the best logit.
LOG_LIKELIHOOD, SHARE, LOGIT = 1e-4, 1e-4, 1e-3
# Scores closer than this may come out in either order.
NEAR_TIE = 1e-4


@pytest.fixture(scope="module")
def members(real_models: dict[str, Path]) -> dict[str, Member]:
    return {
        name: Member.from_pretrained(path, dtype=torch.float32, name=name)
        for name, path in real_models.items()
    }


@pytest.fixture(scope="module")
def readers(members: dict[str, Member]) -> dict[str, Reader]:
    return {name: Reader(member.model, member.tokenizer) for name, member in members.items()}


def check_candidates(recording: Recording, ensemble: Sequence[Member], readers: Any) -> None:
    """Distinct drafts of the length asked for, and the same bytes in everybody's ids."""
    first, data = 0, b""
    for number, round_ in enumerate(recording.run.output.rounds):
        candidates = round_.candidates
        assert len({(c.data, c.ended) for c in candidates}) == len(candidates)
        assert sorted(j for c in candidates for j in c.drafted_by) == [0, 1]
        for candidate in candidates:
            for j, reader in enumerate(readers):
                ids = candidate.token_ids[j]
                assert reader.spell(ids) == candidate.data
                assert [i for i, token in enumerate(ids) if token in reader.end_ids] == (
                    [len(ids) - 1] if candidate.ended else []
                )
                if j not in candidate.drafted_by:
                    own = ids[: len(ids) - candidate.ended]
                    text = candidate.data.decode()
                    assert own == ensemble[j].tokenizer(text, add_special_tokens=False)["input_ids"]
                    continue
                remaining = recording.limit - max(first, number)
                length = min(recording.length, remaining) if j == 0 else recording.length
                if candidate.ended:
                    assert len(ids) <= length + 3
                else:
                    # Longer than asked for only to complete a character.
                    assert length <= len(ids) <= length + 3
                    for count in range(length, len(ids)):
                        assert inside_character(data + reader.spell(ids[:count]))
        first += round_.committed_tokens[0]
        data += round_.data


def check_rounds(recording: Recording, readers: Sequence[Reader]) -> None:
    """Drafts, scores, weights and winner of every round are those of the slow scorer."""
    run, near_ties = recording.run, 0
    before = [context.ids[: context.prompt_length] for context in run.contexts]
    weights = [1 / len(readers)] * len(readers)
    for number, round_ in enumerate(run.output.rounds, 1):
        candidates = round_.candidates
        drafts = [next(c for c, x in enumerate(candidates) if j in x.drafted_by) for j in (0, 1)]
        ids = [[c.token_ids[j] for c in candidates] for j in (0, 1)]
        plain = PlainRound(drafts, ids, before, weights, number)
        near_ties += check_round(round_, drafts, score_round(readers, plain))
        weights = round_.weights
        before = [
            read + candidates[round_.winner].token_ids[j][: round_.committed_tokens[j]]
            for j, read in enumerate(before)
        ]
    assert before == [context.ids for context in run.contexts]
    assert near_ties <= 1


def check_round(round_: Any, drafts: Sequence[int], scored: ScoredRound) -> bool:
    """Returns whether rounding could have decided the round."""
    for j, c in enumerate(drafts):
        assert max(scored.judgements[j][c].behind) < LOGIT
    for c, candidate in enumerate(round_.candidates):
        expected = [row[c].log_likelihood for row in scored.judgements]
        assert candidate.log_likelihoods == pytest.approx(expected, rel=0, abs=LOG_LIKELIHOOD)
        assert candidate.shares == pytest.approx([row[c] for row in scored.shares], abs=SHARE)
        assert candidate.score == pytest.approx(scored.scores[c], abs=SHARE)
    if min(scored.vote_gap, scored.feedback_gap) < NEAR_TIE:
        assert scored.scores[round_.winner] > max(scored.scores) - NEAR_TIE
        return True
    # They depend on who beats whom, not on by how much: no rounding of the scores is in them.
    assert round_.weights == pytest.approx(scored.weights, rel=1e-12)
    assert round_.winner == scored.winner
    return False


# Each member stands first in every other run: the limit counts the first one's tokens.
RUNS = [
    (name, ("smollm2", "gemma3") if place % 2 else ("gemma3", "smollm2"))
    for place, name in enumerate(PROMPTS)
]


def check_all(recording: Recording, prompt: Any, ensemble: Any, readers: Any) -> None:
    check_prompts(recording, prompt, ensemble)
    check_text(recording, readers)
    check_passes(recording)
    check_caches(recording)
    check_candidates(recording, ensemble, readers)
    check_rounds(recording, readers)


# One run of real models takes seconds, so each is decoded once and checked for everything.
@pytest.mark.parametrize(("name", "order"), RUNS, ids=PROMPTS)
def test_two_real_models_decode_as_the_slow_scorer_says(name, order, members, readers):
    ensemble = [members[member] for member in order]
    limit = {"beyond_the_window": 20, "emoji": 40}.get(name, 28)
    recording = record(ensemble, PROMPTS[name], limit)
    if name == "beyond_the_window":
        assert min(context.prompt_length for context in recording.run.contexts) > 512
    check_all(recording, PROMPTS[name], ensemble, [readers[member] for member in order])


def test_drafts_of_one_token_are_judged(members, readers):
    # With one token a draft, nothing but the first token's score decides.
    ensemble = [members["smollm2"], members["gemma3"]]
    prompt = PROMPTS["english"]
    recording = record(ensemble, prompt, 8, length=1)
    assert len(recording.run.output.rounds) >= 4
    check_all(recording, prompt, ensemble, [readers["smollm2"], readers["gemma3"]])


@pytest.mark.parametrize(
    ("name", "prompt", "new_tokens"),
    [
        ("smollm2", PROMPTS["code"], 48),
        ("smollm2", PROMPTS["messages"], 48),
        ("gemma3", BEYOND_THE_WINDOW, 24),
    ],
    ids=["smollm2", "smollm2-messages", "gemma3-beyond_the_window"],
)
def test_a_real_model_with_itself_gives_its_own_greedy_output(
    name, prompt, new_tokens, members, readers
):
    one, reader = members[name], readers[name]
    run = SpecEM([one, Member(one.model, one.tokenizer)]).stream(
        **request(prompt), max_new_tokens=new_tokens
    )
    pieces = [piece.text for piece in run]
    context = run.contexts[0]
    ids = torch.tensor([context.ids[: context.prompt_length]])
    padding = range(reader.columns, one.model.config.vocab_size)
    expected = one.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new_tokens,
        do_sample=False,
        suppress_tokens=[*reader.forbidden, *padding],
    )[0, ids.shape[1] :].tolist()
    assert run.output.token_ids == [expected, expected]
    assert len(expected) == new_tokens or expected[-1] in reader.end_ids
    assert "".join(pieces).encode() == reader.spell(expected)
    assert all(len(round_.candidates) == 1 for round_ in run.output.rounds)


def test_bfloat16_gives_valid_text(real_models, readers):
    # No equality: in bfloat16 rounding decides near ties.
    order = ["smollm2", "gemma3"]
    ensemble = [
        Member.from_pretrained(real_models[name], dtype=torch.bfloat16, name=name) for name in order
    ]
    for name in ("accents", "cjk"):
        recording = record(ensemble, PROMPTS[name], 12)
        check_prompts(recording, PROMPTS[name], ensemble)
        check_text(recording, [readers[member] for member in order])
        check_passes(recording)
        assert recording.run.output.text
        for passes in recording.passes:
            assert {dtype for _, dtype in passes.logits} == {torch.bfloat16}
