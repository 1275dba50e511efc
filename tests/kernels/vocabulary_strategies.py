"""Random vocabularies (duplicates, holes, prefixes of each other, parts of characters), and
logits for them that are wider or narrower than the tables."""

import math

import torch
from hypothesis import assume
from hypothesis import strategies as st

from ensemble_kernels import VocabularyAlignment

from .lane import few
from .oracles.vocabulary_mixture import Model

DTYPES = (torch.float32, torch.float16, torch.bfloat16, *few((torch.float64,), ()))
TOLERANCE = {"rtol": 2e-5, "atol": 2e-6}

# The listed ones are drawn often enough to meet again, within a model and in the next.
TOKENS = st.one_of(
    st.none(),
    st.sampled_from([b"", b"a", b"ab", b"abb", b"b", b" ", b" a", b"\xf0", b"\xf0\x9f"]),
    st.binary(max_size=3),
)


@st.composite
def models(draw, most=3):
    drawn = []
    for _ in range(draw(st.integers(1, most))):
        table = [*draw(st.lists(TOKENS, min_size=1, max_size=10)), b"a"]
        ends = draw(st.lists(st.integers(0, len(table) - 2), max_size=2, unique=True))
        drawn.append(Model(table, ends))
    return drawn


def align(drawn, **kwargs):
    return VocabularyAlignment.from_token_bytes(
        [m.table for m in drawn], [m.ends for m in drawn], **kwargs
    )


@st.composite
def mixtures(draw, values):
    """Models, their logits (wider or narrower than the tables), weights and temperatures."""
    drawn = draw(models())
    rows, dtype = draw(st.integers(1, 3)), draw(st.sampled_from(DTYPES))
    logits = []
    for model in drawn:
        width = max(1, len(model.table) + draw(st.integers(-3, 3)))
        entries = draw(st.lists(values, min_size=rows * width, max_size=rows * width))
        given_logits = torch.tensor(entries, dtype=torch.float64).reshape(width, rows).t()
        logits.append(given_logits.to(dtype))
    weight = st.sampled_from([0.0, 0.25, 1.0, 3.0])
    weights = draw(st.lists(weight, min_size=len(drawn), max_size=len(drawn)).filter(any))
    temperature = st.sampled_from([0.5, 1.0, 1.5])
    temperatures = draw(st.lists(temperature, min_size=len(drawn), max_size=len(drawn)))
    real = [x[:, : len(model.table)] for model, x in zip(drawn, logits, strict=True)]
    assume(all(bool((x > -math.inf).any(-1).all()) for x in real))
    return drawn, logits, weights, temperatures


def rows_of(logits):
    return zip(*[given_logits.double().tolist() for given_logits in logits], strict=True)
