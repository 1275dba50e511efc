"""Token-level ensembles by chance: the first token follows the exact mixture."""

import pytest
import torch

from ensemble_decoding import TokenEnsemble
from ensemble_decoding.options import GenerationOptions
from ensemble_decoding.sampling import TokenChooser, uniform
from tests.decoding.members_for_tests import PROMPT, member
from tests.decoding.scripted_model import scripted
from tests.decoding.test_sampling import COMBINATIONS, sampled_token_by_token
from tests.decoding.token_ensemble_oracle import END, SlowEnsemble, SlowMember, order
from tests.decoding.tokenizers_for_tests import byte_level_tokenizer

DRAWS = 200_000
TEXT = "abab cdcd abcd dcba acac bdbd abc abd cab dab bad dad add. " * 6
LETTERS = b"abcd. "


def toy_tokenizer(text, size):
    """Special tokens, six letters and a few pairs of them."""
    tokenizer = byte_level_tokenizer(text, size, missing_bytes=bytes(set(range(256)) - {*LETTERS}))
    assert len(tokenizer) == size <= 32
    return tokenizer


TOYS = [toy_tokenizer(TEXT, 20), toy_tokenizer(TEXT[::-1], 24)]


def random_script(tokenizer, seed):
    generator = torch.Generator().manual_seed(seed)
    row = torch.softmax(1.5 * torch.randn(len(tokenizer), generator=generator), 0) * 0.999
    return [dict(enumerate(row.tolist()[:-1]))]


def toys(same=False):
    tokenizers = [TOYS[0], TOYS[0 if same else 1]]
    return [
        scripted(tokenizer, random_script(tokenizer, seed), "ab", str(seed))
        for seed, tokenizer in enumerate(tokenizers)
    ]


class Drawn(Exception):
    """Ends a run where it would draw its first token."""


@pytest.fixture
def first_row(monkeypatch):
    """The row that a run draws its first token from."""

    def row_of(method, **options):
        rows = []

        def pick(self, row, position):
            rows.append((row, position, self.seed))
            raise Drawn

        with monkeypatch.context() as patch:
            patch.setattr(TokenChooser, "pick", pick)
            with pytest.raises(Exception, match=r"round 1 failed"):
                method.generate("ab", do_sample=True, seed=3, **options)
        ((row, position, seed),) = rows
        assert (position, seed) == (0, 3)
        return row

    return row_of


METHODS = [
    ({"alignment": "union"}, {}),
    ({"alignment": "union", "mean": "geometric", "weights": [1.0, 2.0]}, {}),
    ({"alignment": "union", "weights": [0.8, 0.1]}, {"temperature": 1.6, "top_k": 9}),
    ({"alignment": "top_k", "k": 4}, {}),
    ({"alignment": "top_k", "k": 7, "mean": "geometric"}, {"temperature": 0.6}),
    ({"alignment": "identity"}, {}),
    ({"alignment": "identity", "mean": "geometric"}, {"temperature": 2.0}),
]


def exact_mixture(members, method, options):
    slow = SlowEnsemble(
        [SlowMember(one.model, one.tokenizer, "ab") for one in members],
        **{"weights": [1.0, 1.0], **method},
    )
    rows = [one.logits(options) for one in slow.members]
    own = (slow._top_k if method["alignment"] == "top_k" else slow._union)([0, 1], rows)
    return slow._mean([0, 1], own, sum(slow.weights))


@pytest.mark.parametrize(("method", "options"), METHODS, ids=str)
def test_the_first_token_follows_the_exact_mixture(first_row, method, options):
    members = toys(same=method["alignment"] == "identity")
    expected = exact_mixture(members, method, options)
    row = first_row(TokenEnsemble(members, **method), **options)
    # What `sample` does with each number, all of them at once.
    cumulated = torch.softmax(row.double(), 0).cumsum(0)
    numbers = torch.tensor([uniform(seed, 0) for seed in range(DRAWS)], dtype=torch.float64)
    drawn = torch.searchsorted(cumulated, numbers * cumulated[-1], right=True)
    chooser = GenerationOptions.resolve({"do_sample": True, "seed": 0}).chooser()
    for seed in range(300):
        chooser.seed = seed
        assert chooser.pick(row, 0) == drawn[seed]
    counts = torch.bincount(drawn, minlength=row.shape[0]) / DRAWS
    if method["alignment"] == "identity":
        slow = SlowMember(members[0].model, TOYS[0], "ab")
        columns = [slow.ids_of[token][0] for token in expected]
        got = dict(zip(expected, counts[columns].tolist(), strict=True))
    else:
        possible = (row > -torch.inf).nonzero().flatten().tolist()
        tokens = sorted((t for t, p in expected.items() if p > 0), key=order)
        got = dict(zip(tokens, counts[possible].tolist(), strict=True))
    assert sum(got.values()) == pytest.approx(1)
    distance = sum(abs(got.get(token, 0) - p) for token, p in expected.items()) / 2
    assert distance < 0.01
    # Between distributions that differ, one of them would be far.
    alone = exact_mixture(members, {**method, "weights": [1.0, 0.001]}, options)
    assert sum(abs(got.get(token, 0) - p) for token, p in alone.items()) / 2 > 0.02


@pytest.mark.parametrize("method", [METHODS[0][0], METHODS[3][0], METHODS[5][0]], ids=str)
def test_whole_runs_draw_what_their_seeds_say(method):
    members = toys(same=method["alignment"] == "identity")
    expected = exact_mixture(members, method, {})
    ensemble = TokenEnsemble(members, **method)
    counts = dict.fromkeys(expected, 0)
    for seed in range(400):
        round_ = ensemble.generate("ab", max_new_tokens=1, do_sample=True, seed=seed).rounds[0]
        (chosen,) = round_.candidates
        token = END if chosen.ended else chosen.data
        counts[token] += 1
        assert chosen.score == pytest.approx(expected[token], rel=1e-5)
    distance = sum(abs(counts[t] / 400 - p) for t, p in expected.items()) / 2
    assert distance < 0.12


@pytest.mark.parametrize("options", COMBINATIONS, ids=str)
def test_a_model_with_itself_samples_as_it_does_alone(options):
    """Id by id the order of the tokens is the model's own, so that a number falls on the same."""
    one = member(seed=3)
    expected = sampled_token_by_token(one, 24, 4, options)
    run = {"max_new_tokens": 24, "do_sample": True, "seed": 4, **options}
    assert TokenEnsemble([one, one]).generate(PROMPT, **run).token_ids == [expected] * 2


def test_the_seed_decides_the_text_and_the_trace_notes_it():
    method = TokenEnsemble([member(seed=1), member(seed=2)])
    options = {"max_new_tokens": 12, "do_sample": True}
    texts = [method.generate(PROMPT, seed=seed, **options).text for seed in (0, 1, 0)]
    assert texts[0] == texts[2] != texts[1]
    unseeded = method.generate(PROMPT, **options)
    again = method.generate(PROMPT, seed=unseeded.rounds.options["seed"], **options)
    assert again.token_ids == unseeded.token_ids


def test_the_main_member_alone_samples_from_its_own_distribution():
    one, other = member(seed=3), member(seed=4)
    expected = sampled_token_by_token(one, 24, 9, {})
    method = TokenEnsemble([one, other], threshold=0.0)
    output = method.generate(PROMPT, max_new_tokens=24, do_sample=True, seed=9)
    assert output.token_ids == [expected] * 2
    assert output.ensembled_share == 0
