import math

import pytest
import torch

from ensemble_kernels import VocabularyAlignment, mix_distributions, sharpen_prefixes, top_k_union

pytestmark = pytest.mark.filterwarnings("ignore:little overlap", "ignore:.* have ids up to")


def test_backend_reference_is_the_operator():
    alignment = VocabularyAlignment.from_token_bytes([[b"a", b"b"]])
    logits = [torch.randn(2, 2)]
    named = mix_distributions(logits, alignment, backend="reference")
    torch.testing.assert_close(named, mix_distributions(logits, alignment))
    with pytest.raises(ValueError, match="backend"):
        top_k_union(logits, alignment, backend="none such")


@pytest.mark.usefixtures("dispatched")
def test_compiles_once_for_all_weights_and_temperatures():
    alignment = VocabularyAlignment.from_token_bytes([[b"a", b"b", None], [b"ab", b"a", b"b"]])
    alignment = alignment.with_first_subtokens([{b"ab": 0}, {}])
    logits = [torch.randn(2, 4), torch.randn(2, 3)]
    columns = torch.tensor([[0, 1, -1], [1, 1, 2]])

    def ensemble(logits, weights, temperature):
        mixed = mix_distributions(
            logits, alignment, weights=weights, temperature=temperature, mean="geometric"
        )
        sharpened = sharpen_prefixes(mixed.probabilities, alignment, columns)
        return mixed, sharpened, top_k_union(logits, alignment, k=2, weights=weights)

    compiled = torch.compile(ensemble, fullgraph=True, backend="aot_eager")
    compiled(logits, torch.tensor([0.5, 0.5]), torch.tensor([1.0, 1.0]))
    with torch.compiler.set_stance("fail_on_recompile"):
        for weight in (0.0, 0.25, 2.0):
            arguments = (logits, torch.tensor([weight, 1.0]), torch.tensor([0.7, 1 + weight]))
            torch.testing.assert_close(compiled(*arguments), ensemble(*arguments))


@pytest.mark.usefixtures("dispatched")
def test_compiled_call_with_unmapped_ids_does_not_warn(recwarn):
    alignment = VocabularyAlignment.from_token_bytes([[b"a", b"b", b"c"]])
    compiled = torch.compile(mix_distributions, fullgraph=True, backend="aot_eager")
    assert compiled([torch.zeros(1, 2)], alignment).probabilities.tolist() == [[0.5, 0.5, 0.0]]
    assert not [w for w in recwarn if "have ids up to" in str(w.message)]


ALIGNMENT = VocabularyAlignment.from_token_bytes([[b"a", b"b"], [b"a", b"c"]])
LOGITS = [torch.zeros(2, 2), torch.zeros(2, 2)]


@pytest.mark.parametrize(
    ("arguments", "options", "error", "match"),
    [
        ((torch.zeros(2, 2, 2), ALIGNMENT), {}, TypeError, "logits must be a list"),
        ((LOGITS, [[b"a"]]), {}, TypeError, "alignment must be a VocabularyAlignment, got list"),
        ((LOGITS[:1], ALIGNMENT), {}, ValueError, "logits must have 2 entries"),
        (([LOGITS[0], None], ALIGNMENT), {}, TypeError, r"logits\[1\] must be a Tensor"),
        (([LOGITS[0], torch.zeros(2)], ALIGNMENT), {}, ValueError, r"logits\[1\] must have 2 dim"),
        (([LOGITS[0], torch.zeros(1, 2)], ALIGNMENT), {}, ValueError, "must have 2 rows"),
        (([LOGITS[0], torch.zeros(2, 0)], ALIGNMENT), {}, ValueError, "at least one column"),
        (([LOGITS[0], LOGITS[1].int()], ALIGNMENT), {}, TypeError, r"logits\[1\] must be of dtype"),
        (([LOGITS[0], LOGITS[1].to("meta")], ALIGNMENT), {}, ValueError, "on the device of"),
        ((LOGITS, ALIGNMENT), {"weights": [1.0]}, ValueError, "weights must have 2 entries"),
        ((LOGITS, ALIGNMENT), {"weights": [0, 0]}, ValueError, "not all zero"),
        ((LOGITS, ALIGNMENT), {"weights": [-1, 2]}, ValueError, "not negative"),
        ((LOGITS, ALIGNMENT), {"weights": [math.nan, 2]}, ValueError, "weights must be finite"),
        ((LOGITS, ALIGNMENT), {"weights": [1e39, 1]}, ValueError, r"at most 3.4.*got \[1e.39, 1\]"),
        ((LOGITS, ALIGNMENT), {"weights": [1, 10**400]}, ValueError, "weights must be at most 3.4"),
        ((LOGITS, ALIGNMENT), {"weights": [1e-50, 0]}, ValueError, "not all be below 1.4.*e-45"),
        ((LOGITS, ALIGNMENT), {"weights": torch.tensor([0.0, 0.0])}, ValueError, "not all zero"),
        ((LOGITS, ALIGNMENT), {"weights": torch.tensor([-1.0, 2.0])}, ValueError, "not negative"),
        ((LOGITS, ALIGNMENT), {"weights": torch.ones(3)}, ValueError, r"weights must have shape"),
        ((LOGITS, ALIGNMENT), {"weights": torch.ones(2).int()}, TypeError, "weights must be of"),
        ((LOGITS, ALIGNMENT), {"weights": 0.5}, TypeError, "weights must be floats or a Tensor"),
        ((LOGITS, ALIGNMENT), {"weights": "ab"}, TypeError, "weights must be floats or a Tensor"),
        ((LOGITS, ALIGNMENT), {"temperature": 0.0}, ValueError, "temperature must be positive"),
        ((LOGITS, ALIGNMENT), {"temperature": math.nan}, ValueError, "temperature must be"),
        ((LOGITS, ALIGNMENT), {"temperature": 1e-40}, ValueError, "from 1e-37 to .* got .1e-40"),
        ((LOGITS, ALIGNMENT), {"temperature": 10**400}, ValueError, "must be from 1e-37 to"),
        ((LOGITS, ALIGNMENT), {"temperature": [1, 1e38]}, ValueError, r"got \[1, 1e.38\]"),
        ((LOGITS, ALIGNMENT), {"temperature": torch.full((2,), 1e-38)}, ValueError, "from 1e-37"),
        ((LOGITS, ALIGNMENT), {"temperature": torch.full((2,), 1e38)}, ValueError, "to 1e.37, got"),
        ((LOGITS, ALIGNMENT), {"temperature": [1.0]}, ValueError, "temperature must have 2"),
        ((LOGITS, ALIGNMENT), {"temperature": torch.zeros(2)}, ValueError, "must be positive"),
        ((LOGITS, ALIGNMENT), {"temperature": "1"}, TypeError, "temperature must be floats"),
    ],
)
def test_bad_logits_and_weights(arguments, options, error, match):
    extended = ALIGNMENT.with_first_subtokens([{}, {}])
    with pytest.raises(error, match=match):
        mix_distributions(*arguments, **options)
    if arguments[1] is ALIGNMENT:
        with pytest.raises(error, match=match):
            top_k_union(arguments[0], extended, **options)


@pytest.mark.parametrize("weight", [3.4e38, 2.0**-149])
def test_only_the_ratios_of_weights_matter(weight):
    """Also where float32 cannot hold their sum."""
    alignment = ALIGNMENT.with_first_subtokens([{b"c": 0}, {b"b": 0}])
    for weights in ([weight, weight], torch.tensor([weight, weight])):
        mixed = mix_distributions(LOGITS, alignment, weights=weights)
        torch.testing.assert_close(mixed, mix_distributions(LOGITS, alignment))
        united = top_k_union(LOGITS, alignment, k=1, weights=weights)
        torch.testing.assert_close(united, top_k_union(LOGITS, alignment, k=1))


def test_the_lowest_and_the_highest_temperature():
    alignment = ALIGNMENT.with_first_subtokens([{b"c": 0}, {b"b": 0}])
    logits = [torch.tensor([[1.0, 3.0]]), torch.tensor([[-2.0, 5.0]])]
    for lowest in (1e-37, torch.tensor([1e-37, 1e-37])):
        mixed = mix_distributions(logits, alignment, temperature=lowest).probabilities
        assert mixed.tolist() == [[0.0, 0.5, 0.5]]
        assert top_k_union(logits, alignment, k=1, temperature=lowest).columns.tolist() == [[1, 2]]
    for highest in (1e37, torch.tensor([1e37, 1e37])):
        mixed = mix_distributions(logits, alignment, temperature=highest).probabilities
        torch.testing.assert_close(mixed, torch.tensor([[0.5, 0.25, 0.25]]))


@pytest.mark.usefixtures("dispatched")
def test_numbers_are_checked_where_tensors_are_not():
    logits = [given.to("meta") for given in LOGITS]
    assert mix_distributions(logits, ALIGNMENT, weights=[1, 2]).probabilities.shape == (2, 3)
    with pytest.raises(ValueError, match="not all zero"):
        mix_distributions(logits, ALIGNMENT, weights=[0, 0])
    for weights in ([1, 1e39], [1e-50, 1e-50]):
        with pytest.raises(ValueError, match="weights must"):
            mix_distributions(logits, ALIGNMENT, weights=weights)
    with pytest.raises(ValueError, match="must be positive"):
        mix_distributions(logits, ALIGNMENT, temperature=-1.0)
    with pytest.raises(ValueError, match="temperature must be from 1e-37"):
        mix_distributions(logits, ALIGNMENT, temperature=1e-40)


def test_bad_options():
    with pytest.raises(ValueError, match="mean must be one of"):
        mix_distributions(LOGITS, ALIGNMENT, mean="harmonic")
    with pytest.raises(ValueError, match=r"first sub-tokens of what its models \[0, 1\] lack"):
        top_k_union(LOGITS, ALIGNMENT)
    extended = ALIGNMENT.with_first_subtokens([{}, {}])
    for k, error in ((0, ValueError), (1.0, TypeError), (True, TypeError)):
        with pytest.raises(error, match="k must be"):
            top_k_union(LOGITS, extended, k=k)
