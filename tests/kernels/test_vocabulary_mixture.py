import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ensemble_kernels import (
    VocabularyAlignment,
    mix_distributions,
    top_k_union,
)

from .lane import examples, few
from .oracles.vocabulary_mixture import mix_row, union
from .samples.vocabulary_mixture import ENDS, TABLES, samples
from .vocabulary_strategies import DTYPES, TOLERANCE, align, mixtures, models, rows_of

pytestmark = pytest.mark.filterwarnings("ignore:little overlap", "ignore:.* have ids up to")


FINITE_OR_NOT = st.one_of(st.floats(-12, 12, width=16), st.just(-math.inf), st.just(-200.0))


@given(mixtures(FINITE_OR_NOT), st.sampled_from(["arithmetic", "geometric"]))
@settings(max_examples=examples(100), deadline=None)
def test_mixture_is_that_of_the_dicts(mixture, mean):
    drawn, logits, weights, temperatures = mixture
    mixed = mix_distributions(
        logits, align(drawn), weights=weights, temperature=temperatures, mean=mean
    )
    for r, row in enumerate(rows_of(logits)):
        probabilities, lost, fell_back, kept = mix_row(drawn, row, weights, temperatures, mean)
        assert mixed.lost_mass[:, r].tolist() == pytest.approx(lost, abs=2e-6)
        assert mixed.lost_mass.min() >= 0
        assert bool(mixed.fell_back[r]) == fell_back
        if 0 < kept < 1e-30 and (mean == "arithmetic" or fell_back):
            continue  # less than float32 can hold
        expected = [probabilities[k] for k in union(drawn)]
        assert mixed.probabilities[r].tolist() == pytest.approx(
            expected, rel=2e-5, abs=2e-6, nan_ok=True
        )


# Metamorphic laws


@pytest.mark.parametrize("scale", [1e38, 1e-38])
def test_only_the_ratios_of_the_weights_matter(scale):
    """Also where their sum is more than float32 can hold, or a weight less than it can invert."""
    alignment = VocabularyAlignment.from_token_bytes([[b"a", b"b"], [b"a", b"c"]])
    logits = [torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, -1.0]])]
    weights, scaled = [3.0, 1.0], [3 * scale, scale]
    for mean in ("arithmetic", "geometric"):
        torch.testing.assert_close(
            mix_distributions(logits, alignment, weights=scaled, mean=mean),
            mix_distributions(logits, alignment, weights=weights, mean=mean),
        )


@given(models(1), st.integers(1, 4))
@settings(max_examples=examples(25), deadline=None)
def test_equal_models_mix_to_the_model(drawn, count):
    logits = torch.randn(2, len(drawn[0].table), generator=torch.Generator().manual_seed(count))
    alone = mix_distributions([logits], align(drawn)).probabilities
    for mean in ("arithmetic", "geometric"):
        mixed = mix_distributions(
            [logits] * count, align(drawn * count), weights=list(range(1, count + 1)), mean=mean
        )
        torch.testing.assert_close(mixed.probabilities, alone, **TOLERANCE)


def test_a_vocabulary_mapped_to_itself_is_the_softmax():
    tokens = [bytes([b]) for b in range(97, 120)]
    alignment = VocabularyAlignment.from_token_bytes([[*tokens, None]], [[23]])
    logits = torch.randn(3, 24)
    mixed = mix_distributions([logits], alignment)
    torch.testing.assert_close(mixed.probabilities, logits.softmax(-1), **TOLERANCE)
    assert mixed.lost_mass.max() < 1e-6
    top = top_k_union([logits], alignment, k=5)
    assert torch.equal(top.columns, logits.topk(5).indices.sort().values)


def test_order_of_models_changes_nothing_but_rounding():
    (logits, *_, weights, temperature, _), _ = samples()["mix_distributions"][1]

    def mix(order):
        alignment = VocabularyAlignment.from_token_bytes(
            [TABLES[m] for m in order], [ENDS[m] for m in order]
        )
        return mix_distributions(
            [logits[m] for m in order],
            alignment,
            weights=weights[order],
            temperature=temperature[order],
        )

    there, back = mix([0, 1]), mix([1, 0])
    torch.testing.assert_close(there.probabilities, back.probabilities, **TOLERANCE)
    torch.testing.assert_close(there.lost_mass, back.lost_mass.flip(0), **TOLERANCE)


def test_bitwise_equal_over_many_runs():
    tokens = [bytes([b % 256, b // 256]) for b in range(3000)]
    tables = [tokens + tokens[:1000], tokens[500:] + tokens[:700] + tokens[:700]]
    alignment = VocabularyAlignment.from_token_bytes(tables, [[7, 3999], [11]])
    alignment = alignment.with_first_subtokens([{}, {}])
    generator = torch.Generator().manual_seed(0)
    logits = [torch.randn(few(16, 3), len(table), generator=generator) for table in tables]

    def run():
        mixed = mix_distributions(logits, alignment, mean="geometric")
        return *mixed, *top_k_union(logits, alignment)

    runs = [run() for _ in range(few(48, 2))]
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        runs += [run(), run()]
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for later in runs[1:] for a, b in zip(runs[0], later, strict=True))


# Cases that people ran into


def mix(tables, logits, ends=None, **options):
    alignment = VocabularyAlignment.from_token_bytes(tables, ends)
    mixed = mix_distributions([torch.tensor([row]) for row in logits], alignment, **options)
    return alignment, mixed


def test_a_padding_column_never_wins():
    for padding in (50.0, math.inf, math.nan):
        _, mixed = mix([[b"a", b"b"], [b"a", b"b"]], [[0.0, 0.0, padding], [0.0, 0.0]])
        assert mixed.probabilities.tolist() == [[0.5, 0.5]]
        assert mixed.lost_mass.tolist() == [[0.0], [0.0]]


def test_ids_behind_the_logits_are_unmapped_with_one_warning():
    table = [bytes([i]) if i < 100 or i in (105, 120) else None for i in range(121)]
    alignment = VocabularyAlignment.from_token_bytes([table, table])
    logits = [torch.zeros(1, 110), torch.zeros(1, 110)]
    message = "1 tokens of model 0 have ids up to 120, but its logits have 110 columns; 1 tokens"
    with pytest.warns(UserWarning, match=message) as caught:
        mix_distributions(logits, alignment)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mixed = mix_distributions(logits, alignment)
    assert mixed.probabilities[0, alignment.column(bytes([120]))] == 0
    assert mixed.probabilities.sum().item() == pytest.approx(1)
    # The holes 100..104 and 106..109 are in the softmax, as special tokens are.
    assert mixed.lost_mass[0].item() == pytest.approx(9 / 110)


def test_ids_with_equal_bytes_add_up():
    _, mixed = mix([[b" ", b" ", b"a"]], [[math.log(p) for p in (0.2, 0.3, 0.5)]])
    assert mixed.probabilities[0].tolist() == pytest.approx([0.5, 0.5])


def test_many_ids_of_end_of_text_are_one_event():
    table = [b"a", b"<1>", b"<2>", b"<3>", b"<4>", None]
    alignment, mixed = mix([table, [b"a"]], [[0.0] * 6, [0.0]], [[1, 2, 3, 4], []])
    assert mixed.probabilities[0, alignment.end_of_text].item() == pytest.approx(4 / 11)
    assert mixed.lost_mass[:, 0].tolist() == pytest.approx([1 / 6, 0])


def test_lost_mass_lowers_the_say():
    # The first model puts 3/4 on a special token: 1/4 against the other's 1.
    _, mixed = mix([[b"a", None], [b"b"]], [[0.0, math.log(3)], [0.0]])
    assert mixed.probabilities[0].tolist() == pytest.approx([0.2, 0.8])
    _, mixed = mix([[b"a", None], [b"a", b"b"]], [[-math.inf, 0.0], [-math.inf, 0.0]])
    assert mixed.probabilities[0].tolist() == [0.0, 1.0]
    _, mixed = mix([[b"a", None]], [[-math.inf, 0.0]])
    assert mixed.lost_mass.tolist() == [[1.0]]
    assert mixed.probabilities.isnan().all()


def test_geometric_without_common_support_falls_back():
    tables = [[b"a", b"b"], [b"b", b"c"]]
    _, mixed = mix(tables, [[0.0, -math.inf], [0.0, 0.0]], mean="geometric")
    assert mixed.fell_back.tolist() == [True]
    assert mixed.probabilities[0].tolist() == pytest.approx([0.5, 0.25, 0.25])
    # Tiny is not empty: b"b" is all that both have, at a mass that float32 cannot hold.
    _, mixed = mix(tables, [[300.0, 0.0], [0.0, 0.0]], mean="geometric")
    assert mixed.fell_back.tolist() == [False]
    assert mixed.probabilities[0].tolist() == [0.0, 1.0, 0.0]
    # A model of weight 0 takes no support away.
    _, mixed = mix(tables, [[0.0, -math.inf], [0.0, 0.0]], mean="geometric", weights=[1, 0])
    assert mixed.fell_back.tolist() == [False]
    assert mixed.probabilities[0].tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("size", [1, 7, 31, 1023, 1024, 1025])
@pytest.mark.parametrize("dtype", DTYPES)
def test_half_of_the_logits_masked(size, dtype):
    tokens = [b"%06d" % i for i in range(size)]
    alignment = VocabularyAlignment.from_token_bytes([tokens, tokens[::-1]])
    generator = torch.Generator().manual_seed(size)
    logits = [torch.randn(2, size, generator=generator).mul(8).to(dtype) for _ in range(2)]
    for given_logits in logits:
        given_logits[:, : size // 2] = -math.inf
    expected = [x.double().softmax(-1) for x in logits]
    expected = (expected[0] + expected[1].flip(1)) / 2
    mixed = mix_distributions(logits, alignment)
    torch.testing.assert_close(mixed.probabilities.double(), expected, **TOLERANCE)
    geometric = mix_distributions(logits, alignment, mean="geometric")
    assert geometric.probabilities.isfinite().all()
    assert geometric.fell_back.tolist() == [size % 2 == 0] * 2


@pytest.mark.parametrize("bad", [math.nan, math.inf, "all -inf"])
@pytest.mark.parametrize("position", [0, 4, 8, 9])
@pytest.mark.parametrize("mean", ["arithmetic", "geometric"])
def test_nan_fills_its_row_and_no_other(bad, position, mean):
    tokens = [b"%d" % i for i in range(9)]
    alignment = VocabularyAlignment.from_token_bytes([[*tokens, None], tokens])
    logits = [torch.randn(3, 10), torch.randn(3, 9)]
    whole = mix_distributions(logits, alignment, mean=mean)
    spoilt = logits[0].clone()
    spoilt[1] = torch.full((10,), -math.inf) if bad == "all -inf" else logits[0][1]
    if bad != "all -inf":
        spoilt[1, position] = bad
    mixed = mix_distributions([spoilt, logits[1]], alignment, mean=mean)
    assert mixed.probabilities[1].isnan().all()
    assert mixed.lost_mass[0, 1].isnan()
    assert not mixed.lost_mass[1].isnan().any()
    assert torch.equal(mixed.probabilities[::2], whole.probabilities[::2])
    # A model without a vote may hold anything.
    alone = mix_distributions([spoilt, logits[1]], alignment, mean=mean, weights=[0.0, 1.0])
    torch.testing.assert_close(alone.probabilities, logits[1].softmax(-1), **TOLERANCE)


def test_no_foreign_id_leaks_between_disjoint_id_ranges():
    shared = [b"x", b"y", b"z"]
    tables = [[*shared, *[None] * 50], [*[None] * 50, *shared]]
    alignment = VocabularyAlignment.from_token_bytes(tables)
    logits = [torch.randn(4, 53), torch.randn(4, 53)]
    expected = (logits[0].softmax(-1)[:, :3] + logits[1].softmax(-1)[:, 50:]) / 2
    expected = expected / expected.sum(-1, keepdim=True)
    mixed = mix_distributions(logits, alignment).probabilities
    torch.testing.assert_close(mixed, expected, **TOLERANCE)
    assert top_k_union(logits, alignment, k=10).columns.max() == 2
