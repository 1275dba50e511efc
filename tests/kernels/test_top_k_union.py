import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ensemble_kernels import VocabularyAlignment, top_k_union

from .lane import examples, few
from .oracles.vocabulary_mixture import END, Model, top_k_row, union
from .vocabulary_strategies import DTYPES, align, mixtures, rows_of

pytestmark = pytest.mark.filterwarnings("ignore:little overlap", "ignore:.* have ids up to")

# Which ids stand above the others.
LIKELIEST = ("none", "any", "of no column", "of one column", "neighbours")
# Halves are exact in every dtype, so that ties are ties in all of them.
HALVES = st.one_of(st.integers(-16, 16).map(lambda n: n / 2), st.just(-math.inf))


@given(mixtures(HALVES), st.integers(1, 4), st.data())
@settings(max_examples=examples(100), deadline=None)
def test_top_k_is_that_of_the_dicts(mixture, k, data):
    drawn, logits, weights, temperatures = mixture
    alignment = align(drawn)
    for m, model in enumerate(drawn):
        text_ids = [i for i in range(len(model.table)) if model.key(i) not in (None, END)]
        for token in alignment.missing_tokens(m):
            token_id = data.draw(st.sampled_from([*text_ids, None]))
            if token_id is not None:
                model.first_subtoken[token] = token_id
    alignment = alignment.with_first_subtokens([m.first_subtoken for m in drawn])
    top = top_k_union(logits, alignment, k=k, weights=weights, temperature=temperatures)
    assert top.columns.shape == top.probabilities.shape == (logits[0].shape[0], len(drawn) * k)
    check_rows(top, drawn, logits, weights, temperatures, k)


def check_rows(top, drawn, logits, weights, temperatures, k):
    keys = union(drawn)
    for r, row in enumerate(rows_of(logits)):
        expected, gap = top_k_row(drawn, row, weights, temperatures, k)
        if gap < 1e-4:
            continue  # nearer than float32 can tell
        columns, probabilities = top.columns[r].tolist(), top.probabilities[r].tolist()
        if any(math.isnan(p) for p in expected.values()) or not expected:
            assert columns == [-1] * len(columns)
            assert all(math.isnan(p) for p in probabilities)
            continue
        order = [c for c, key in enumerate(keys) if key in expected]
        assert columns == order + [-1] * (len(columns) - len(order))
        padded = [expected[keys[c]] for c in order] + [0.0] * (len(columns) - len(order))
        assert probabilities == pytest.approx(padded, rel=2e-5, abs=2e-6)


TOKENS_OF_BLOCKS = few(1500, 600)  # enough that only some blocks of logits can matter


@given(st.integers(0, 2**32), st.integers(1, 12), st.sampled_from(LIKELIEST))
@settings(max_examples=examples(40), deadline=None)
def test_top_k_of_many_tokens(seed, k, likeliest):
    rng = random.Random(seed)
    texts = [b"%d" % i for i in range(2 * TOKENS_OF_BLOCKS)]
    drawn, logits, temperatures = [], [], [0.5, 1.5]
    dtype = rng.choice(DTYPES)
    for _ in range(2):
        table = rng.sample(texts, TOKENS_OF_BLOCKS)
        for _ in range(20):  # ids of no column, and several of one
            table[rng.randrange(TOKENS_OF_BLOCKS)] = None
            table[rng.randrange(TOKENS_OF_BLOCKS)] = table[0]
        drawn.append(Model(table, rng.sample(range(TOKENS_OF_BLOCKS), 3)))
        rows = [[rng.randint(-8, 8) / 2 for _ in table] for _ in range(3)]
        for row in rows:
            for i in likely_ids(drawn[-1], likeliest, k, rng):
                row[i] = rng.randint(10, 40) / 2
        logits.append(torch.tensor(rows).to(dtype))
    alignment = align(drawn).with_first_subtokens([{}, {}])
    top = top_k_union(logits, alignment, k=k, temperature=temperatures)
    check_rows(top, drawn, logits, [1.0, 1.0], temperatures, k)


def likely_ids(model, likeliest, k, rng):
    ids = range(len(model.table))
    of = {
        "none": [],
        "any": ids,
        "of no column": [i for i in ids if model.key(i) is None],
        "of one column": [i for i in ids if model.key(i) == model.table[0]],
        "neighbours": ids[40 : 40 + 2 * k],
    }[likeliest]
    return rng.sample(of, min(len(of), 2 * k + 8))


@pytest.mark.parametrize("bad", [math.nan, "all -inf"])
@pytest.mark.parametrize("position", [0, 4, 8, 9])
def test_nan_leaves_no_candidate(bad, position):
    tokens = [b"%d" % i for i in range(9)]
    alignment = VocabularyAlignment.from_token_bytes([[*tokens, None], tokens])
    logits = [torch.randn(3, 10), torch.randn(3, 9)]
    spoilt = logits[0].clone()
    spoilt[1] = -math.inf
    if bad != "all -inf":
        spoilt[1] = logits[0][1]
        spoilt[1, position] = bad
    top = top_k_union([spoilt, logits[1]], alignment, k=2)
    assert top.columns[1].tolist() == [-1] * 4
    assert top.probabilities[1].isnan().all()
    assert not top.probabilities[::2].isnan().any()
    alone = top_k_union([spoilt, logits[1]], alignment, k=2, weights=[0.0, 1.0])
    assert alone.columns[1].tolist() == [*sorted(logits[1][1].topk(2).indices.tolist()), -1, -1]


def test_candidates_that_fall_on_one_token_share_its_weight():
    # The second model has b"Inc" for b"Inc", b"Incorrect" and b"Income": a third of it each.
    alignment = VocabularyAlignment.from_token_bytes(
        [[b"Incorrect", b"Income", b"Inc", b"No"], [b"Inc", b"No"]]
    ).with_first_subtokens([{}, {b"Incorrect": 0, b"Income": 0}])
    logits = [torch.zeros(1, 4), torch.tensor([[math.log(3.0), 0.0]])]
    top = top_k_union(logits, alignment, k=4, weights=[0.5, 0.5])
    assert top.columns.tolist() == [[0, 1, 2, 3, -1, -1, -1, -1]]
    assert top.probabilities[0].tolist() == pytest.approx([0.25] * 4 + [0.0] * 4)


@pytest.mark.parametrize("scale", [1e38, 1e-38])
def test_only_the_ratios_of_the_weights_matter(scale):
    alignment = VocabularyAlignment.from_token_bytes([[b"a", b"b"]] * 2)
    logits = [torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, -1.0]])]
    torch.testing.assert_close(
        top_k_union(logits, alignment, weights=[3 * scale, scale]),
        top_k_union(logits, alignment, weights=[3.0, 1.0]),
    )


def test_ids_with_equal_bytes_are_summed_before_ranking():
    alignment = VocabularyAlignment.from_token_bytes([[b"a", b"b", b"a"]])
    top = top_k_union([torch.tensor([[0.0, 0.5, 0.0]])], alignment, k=1)
    assert top.columns.tolist() == [[0]]


def test_infinite_ids_of_one_column_leave_no_candidate():
    alignment = VocabularyAlignment.from_token_bytes([[b"a", b"b", b"a"]])
    top = top_k_union([torch.tensor([[math.inf, 0.5, math.inf]])], alignment, k=2)
    assert top.columns.tolist() == [[-1, -1]]
    assert top.probabilities.isnan().all()


def test_equal_scores_are_ranked_by_their_bytes():
    tokens = [b"%02d" % i for i in range(40)]
    alignment = VocabularyAlignment.from_token_bytes([tokens[::-1]])
    top = top_k_union([torch.zeros(2, 40)], alignment, k=3)
    assert top.columns.tolist() == [[0, 1, 2]] * 2


def test_k_far_above_the_vocabulary_takes_no_square_of_memory():
    alignment = VocabularyAlignment.from_token_bytes([[b"a", b"b"], [b"b", b"a"]])
    logits = [torch.tensor([[1.0, 2.0]]), torch.tensor([[0.5, 0.25]])]
    few = top_k_union(logits, alignment, k=2)
    many = top_k_union(logits, alignment, k=1_000_000)  # its square: 4 TB
    assert torch.equal(many.columns[:, :4], few.columns)
    torch.testing.assert_close(many.probabilities[:, :4], few.probabilities)
    assert (many.columns[:, 4:] == -1).all()
