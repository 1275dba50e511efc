"""`combine`, which takes the place of the mean in a token-level ensemble."""

import re
from pathlib import Path

import pytest
import torch

from ensemble_decoding import DecodingError, TokenEnsemble
from tests.decoding.members_for_tests import PROMPT, member, three_families
from tests.decoding.tokenizers_for_tests import byte_level_tokenizer, sentencepiece_tokenizer

MEMBERS = three_families()
TWO = MEMBERS[:2]


def weighted_mean(probabilities, weights):
    return (torch.tensor(weights)[:, None] * probabilities).sum(0)


@pytest.mark.parametrize("alignment", ["union", "top_k", "identity"])
def test_combine_takes_the_place_of_the_mean(alignment):
    twins = [member(seed=1), member(seed=2, tokenizer=byte_level_tokenizer())]
    members = twins if alignment == "identity" else TWO
    options = {"alignment": alignment, "weights": [1, 3]}
    built_in = TokenEnsemble(members, **options).generate(PROMPT, max_new_tokens=30)
    own = TokenEnsemble(members, combine=weighted_mean, **options)
    output = own.generate(PROMPT, max_new_tokens=30)
    assert output.token_ids == built_in.token_ids
    for got, expected in zip(output.rounds, built_in.rounds, strict=True):
        assert got.candidates[0].score == pytest.approx(expected.candidates[0].score, rel=1e-4)
        assert got.candidates[0].shares == pytest.approx(expected.candidates[0].shares, rel=1e-4)
    assert output.rounds.options["combine"] == "weighted_mean"
    second = TokenEnsemble(members, combine=lambda p, w: p[1] / p[1].sum(), alignment=alignment)
    text = second.generate(PROMPT, max_new_tokens=30).text
    assert text != output.text


def test_combine_gets_the_voters_alone():
    seen = []

    def combine(probabilities, weights):
        seen.append((probabilities.shape[0], probabilities.sum(1).tolist(), sum(weights)))
        return weighted_mean(probabilities, weights)

    method = TokenEnsemble(MEMBERS, combine=combine, alignment="top_k", weights=[1, 0, 2])
    run = method.stream(PROMPT, max_new_tokens=20)
    for piece in run:
        count, sums, total = seen[-1]
        assert count == len(piece.round.voters) <= 2
        assert [*sums, total] == pytest.approx([1] * (count + 1), rel=1e-5)


@pytest.mark.parametrize(
    ("combine", "message"),
    [
        (lambda p, w: p.tolist(), "combine must return a Tensor, got list"),
        (lambda p, w: p, r"combine must return .* of shape \[\d+\], got \[2, \d+\]"),
        (lambda p, w: p[0, :-1], r"combine must return .* of shape"),
        (lambda p, w: p[0].argsort(), "combine must return floating-point .*int64"),
        (lambda p, w: p.sum(0) * torch.nan, "combine must return .* finite and not negative"),
        (lambda p, w: -p[0], "combine must return .* finite and not negative"),
        (lambda p, w: 3 * p[0], "combine must return .* sum to about 1, got"),
        (lambda p, w: 0 * p[0], "combine must return .* sum to about 1, got 0"),
    ],
)
def test_what_combine_returns_is_checked(combine, message):
    method = TokenEnsemble(TWO, alignment="top_k", combine=combine)
    with pytest.raises(DecodingError, match=f"round 1 failed: {message}") as caught:
        method.generate(PROMPT)
    assert caught.value.output.text == ""


def test_a_smoothing_combine_brings_up_nothing_that_no_voter_has():
    holes = byte_level_tokenizer(missing_bytes=b"q")
    members = [member(tokenizer=holes, seed=1), member(tokenizer=holes, seed=2)]
    members.append(member(tokenizer=sentencepiece_tokenizer(), seed=3))

    def smoothed(probabilities, weights):
        mixed = weighted_mean(probabilities, weights)
        return mixed / mixed.sum() / 2 + 0.5 / mixed.shape[0]

    method = TokenEnsemble(members, combine=smoothed, weights=[1, 1, 0])
    run = method.stream(PROMPT, max_new_tokens=30, do_sample=True, seed=1)
    for piece in run:
        assert max(piece.round.candidates[0].shares) > 0
    assert run.output.unspelled[:2] == [b"", b""]


def test_the_documented_example_decodes():
    page = Path(__file__).parents[2] / "docs" / "token-ensembles.md"
    (code,) = re.findall(r"```python\n(import torch\n.*?)```", page.read_text(), re.S)
    names = {"TokenEnsemble": TokenEnsemble, "members": TWO}
    exec(compile(code.replace('is")', 'is", max_new_tokens=5)'), str(page), "exec"), names)
    output = names["output"]
    assert output.token_ids[0]
    for round_ in output.rounds:
        assert round_.candidates[0].score == pytest.approx(
            max(round_.candidates[0].shares), rel=0.1
        )
