import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ensemble_kernels import VocabularyAlignment, sharpen_prefixes

from .lane import examples
from .oracles.vocabulary_mixture import sharpen_row, union
from .vocabulary_strategies import DTYPES, align, models

pytestmark = pytest.mark.filterwarnings("ignore:little overlap", "ignore:.* have ids up to")

ALIGNMENT = VocabularyAlignment.from_token_bytes([[b"a", b"b"], [b"a", b"c"]])


@given(models(), st.sampled_from(DTYPES), st.sampled_from([0.0, 0.05, 0.2]), st.data())
@settings(max_examples=examples(50), deadline=None)
def test_sharpened_is_that_of_the_dicts(drawn, dtype, threshold, data):
    alignment, keys = align(drawn), union(drawn)
    size = len(keys)
    probabilities = torch.tensor(
        data.draw(st.lists(st.floats(0, 0.5, width=16), min_size=2 * size, max_size=2 * size))
    )
    probabilities = probabilities.reshape(size, 2).t().to(dtype)
    column = st.integers(-1, size - 1)
    columns = torch.tensor(
        data.draw(st.lists(st.tuples(column, column), min_size=1, max_size=5))
    ).t()
    before = probabilities.clone()
    sharpened = sharpen_prefixes(probabilities, alignment, columns, threshold=threshold)
    assert torch.equal(probabilities, before)
    assert sharpened.dtype == dtype
    for r in range(2):
        row = dict(zip(keys, probabilities[r].double().tolist(), strict=True))
        # The threshold is compared in the dtype of the probabilities.
        limit = torch.tensor(threshold, dtype=dtype).item()
        candidates = [keys[c] for c in columns[r].tolist() if c >= 0]
        expected = list(sharpen_row(row, candidates, limit).values())
        exact = torch.tensor(expected, dtype=torch.float64).to(dtype)
        torch.testing.assert_close(sharpened[r], exact)


def test_nested_and_repeated_candidates_do_not_compound():
    alignment = VocabularyAlignment.from_token_bytes([[b"a", b"ab", b"abc", b"b", None]], [[4]])
    probabilities = torch.tensor([[0.2, 0.25, 0.05, 0.2, 0.3]])
    for columns in ([0, 1, 3, 4], [4, 3, 1, 0], [1, 1, -1, 0, 3, 0]):
        sharpened = sharpen_prefixes(probabilities, alignment, torch.tensor([columns]))
        assert sharpened[0].tolist() == pytest.approx([0.5, 0.3, 0.05, 0.2, 0.3])


def test_a_long_range_is_summed_exactly():
    words = [b" " + str(n).encode() for n in range(150_000)]
    alignment = VocabularyAlignment.from_token_bytes([[b" ", b"!", b"~", *words]])
    probabilities = torch.full((1, alignment.size), 1e-8)
    probabilities[0, alignment.column(b"!")] = 0.5
    probabilities[0, alignment.column(b" ")] = 0.25
    sharpened = sharpen_prefixes(probabilities, alignment, alignment.model_columns(0)[None])
    small = probabilities[0, -1].double().item()
    assert sharpened[0, 0].item() == pytest.approx(0.25 + 150_000 * small, rel=1e-7)
    assert torch.equal(sharpened[0, 1:], probabilities[0, 1:])


@pytest.mark.parametrize(
    ("probabilities", "columns", "threshold", "error", "match"),
    [
        ([0.5], torch.zeros(1, 1).long(), 0.1, TypeError, "probabilities must be a Tensor"),
        (torch.zeros(1, 2), torch.zeros(1, 1).long(), 0.1, ValueError, r"shape \[1, 3\]"),
        (torch.zeros(1, 3).int(), torch.zeros(1, 1).long(), 0.1, TypeError, "of dtype"),
        (torch.zeros(1, 3), torch.zeros(2, 1).long(), 0.1, ValueError, "columns must have shape"),
        (torch.zeros(1, 3), torch.zeros(1).long(), 0.1, ValueError, "columns must have 2 dim"),
        (torch.zeros(1, 3), torch.zeros(1, 1).int(), 0.1, TypeError, "columns must be of dtype"),
        (torch.zeros(1, 3), torch.tensor([[3]]), 0.1, ValueError, "from -1 to 2, got 3"),
        (torch.zeros(1, 3), torch.tensor([[0, -2]]), 0.1, ValueError, "from -1 to 2, got -2"),
        (torch.zeros(1, 3), torch.zeros(1, 1).long(), -0.1, ValueError, "not be negative"),
        (torch.zeros(1, 3), torch.zeros(1, 1).long(), "0", TypeError, "threshold must be a float"),
    ],
)
def test_bad_sharpening(probabilities, columns, threshold, error, match):
    with pytest.raises(error, match=match):
        sharpen_prefixes(probabilities, ALIGNMENT, columns, threshold=threshold)
