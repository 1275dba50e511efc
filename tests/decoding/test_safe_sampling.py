"""SAFE by chance: under "always", and where a drafted token is accepted or replaced, the tokens
follow the mixture exactly. Under "safe" the tokens that are kept without a mixture do not."""

from collections import Counter
from functools import cache
from types import SimpleNamespace

import pytest
import torch

from ensemble_decoding import SAFE, safe_vote
from ensemble_decoding.mixtures import Mixtures
from ensemble_decoding.safe_vote import SafeVote
from ensemble_decoding.sampling import uniform
from ensemble_decoding.token_mixture import Token
from tests.decoding.safe_oracle import END, SlowSafe, order
from tests.decoding.scripted_model import scripted
from tests.decoding.test_token_ensemble_sampling import TOYS, first_row, toys  # noqa: F401

DRAWS = 200_000
METHODS = [
    ({"sharpen": None}, {}),
    ({}, {"temperature": 0.6}),
    ({"sharpen": "geometric", "weights": [1.0, 2.0]}, {}),
    ({"weights": [0.8, 0.1]}, {"temperature": 1.6, "top_k": 9}),
    ({"alignment": "top_k", "k": 4}, {}),
    ({"alignment": "identity"}, {"top_p": 0.8}),
]


def exact_mixture(members, method, options):
    slow = SlowSafe([(one.model, one.tokenizer) for one in members], "ab", **method)
    rows = {j: one.row([], **options) for j, one in enumerate(slow.members)}
    if top_p := options.get("top_p"):
        for j, one in enumerate(slow.members):
            rows[j] = nucleus(rows[j], one.usable, top_p)
    return slow._mixture(rows)[0]


def nucleus(row, usable, top_p):
    """The likeliest tokens until their sum is `top_p`, of the text tokens alone."""
    row = torch.tensor(row)
    own = torch.softmax(row[usable], 0)
    ranked = own.argsort(descending=True)
    before = own[ranked].cumsum(0) - own[ranked]
    for index in ranked[before >= top_p].tolist():
        row[usable[index]] = -torch.inf
    return row.tolist()


@cache
def numbers(purpose=b"", count=DRAWS):
    """The numbers that runs with so many seeds draw at their first token."""
    return torch.tensor([uniform(seed, 0, purpose) for seed in range(count)], dtype=torch.float64)


def drawn(row, chances):
    """What `sample` does with each number, all of them at once."""
    cumulated = torch.softmax(row.double(), 0).cumsum(0)
    return torch.searchsorted(cumulated, chances * cumulated[-1], right=True)


def distance(first, second):
    return sum(abs(first.get(t, 0) - second.get(t, 0)) for t in {*first, *second}) / 2


@pytest.mark.parametrize(("method", "options"), METHODS, ids=str)
def test_always_the_first_token_follows_the_exact_mixture(first_row, method, options):  # noqa: F811
    same = method.get("alignment") == "identity"
    members = toys(same=same)
    expected = exact_mixture(members, method, options)
    row = first_row(SAFE(members[0], members[1:], ensemble_when="always", **method), **options)
    counts = torch.bincount(drawn(row, numbers()), minlength=row.shape[0]) / DRAWS
    possible = (row > -torch.inf).nonzero().flatten().tolist()
    tokens = sorted((t for t, p in expected.items() if p > 0), key=order)
    if same:
        slow = SlowSafe([(one.model, one.tokenizer) for one in members], "ab")
        tokens.sort(key=lambda token: slow.drafter.ids_of[token])
    got = dict(zip(tokens, counts[possible].tolist(), strict=True))
    assert sum(got.values()) == pytest.approx(1)
    assert distance(got, expected) < 0.01
    # Between distributions that differ, one of them would be far.
    alone = exact_mixture(members, {**method, "weights": [1.0, 1e-9]}, options)
    assert distance(got, alone) > 0.02


def test_always_whole_runs_draw_what_their_seeds_say():
    members = toys()
    expected = exact_mixture(members, {}, {})
    tokens = sorted(expected, key=order)
    row = torch.tensor([expected[token] for token in tokens], dtype=torch.float64).log()
    method = SAFE(members[0], members[1:], ensemble_when="always")
    for seed, index in enumerate(drawn(row, numbers(count=200)).tolist()):
        output = method.generate("ab", max_new_tokens=1, do_sample=True, seed=seed)
        ((decision,),) = [round_.decisions for round_ in output.rounds]
        assert (END if decision.chosen_end else decision.chosen) == tokens[index]
        assert decision.mixture[1] == pytest.approx(expected[tokens[index]], rel=1e-5)


def vote_of(members, **method):
    alignment = method.pop("alignment", "union")
    mixture = Mixtures(alignment, "arithmetic", None, 4).of(members)
    return SafeVote(mixture, method.pop("weights", [0.5, 0.5]), method.pop("sharpen", "prefix"))


def row_of(one, response=()):
    return one.model(torch.tensor([one.encode_prompt("ab")])).logits[0, -1].detach()


def accepted_from(monkeypatch, vote, mixed, token, row):
    """The numbers below this one keep a token; and the row that a replacement is drawn from."""
    rows = []

    def outcome(number):
        with monkeypatch.context() as patch:
            patch.setattr(safe_vote, "uniform", lambda seed, position, purpose: number)
            patch.setattr(safe_vote, "sample", lambda row, number: rows.append(row))
            before = len(rows)
            vote.kept_or_chosen(mixed, token, row, 0, 0)
            return len(rows) == before

    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if outcome(middle) else (low, middle)
    return low, rows[-1] if rows else None


@pytest.mark.parametrize("alignment", ["union", "top_k", "identity"])
@pytest.mark.parametrize(
    ("sharpen", "sharpness"),
    [("prefix", 0.3), ("prefix", 4.0), ("geometric", 1.0), (None, 0.3), (None, 2.0)],
)
def test_what_is_accepted_or_replaced_follows_the_mixture(
    monkeypatch, alignment, sharpen, sharpness
):
    """Whatever the drafter drew from: it is as sure of itself as `sharpness` says."""
    members = toys(same=alignment == "identity")
    contexts = [SimpleNamespace(member=one) for one in members]
    vote = vote_of(members, alignment=alignment, sharpen=sharpen)
    rows = [row_of(one)[: len(one.table)] for one in members]
    mixed = vote.mix(contexts, rows, vote.weights)
    table, drafter = members[0].table, members[0]
    allowed = [i for i in range(len(table)) if not drafter.is_suppressed(i)]
    row = torch.full_like(rows[0], -torch.inf)
    row[allowed] = sharpness * rows[0][allowed]
    emitted = torch.zeros(mixed.probabilities.shape[0], dtype=torch.float64)
    chances = [numbers(purpose) for purpose in (b"", b"accept", b"replace")]
    drafts = drawn(row, chances[0])
    for number in drafts.unique().tolist():
        ended = drafter.is_end_of_text(number)
        token = Token(b"" if ended else table.spell((number,)), ended, number)
        threshold, rest = accepted_from(monkeypatch, vote, mixed, token, row)
        here = drafts == number
        kept = here & (chances[1] <= threshold)
        if kept.any():
            emitted[vote.mixture.find(mixed, token)] += kept.sum()
        if rest is not None:
            replaced = drawn(rest, chances[2][here & ~kept])
            emitted += torch.bincount(replaced, minlength=len(emitted))
    assert emitted.sum() == DRAWS
    assert (emitted / DRAWS - mixed.probabilities).abs().sum() / 2 < 0.01


def letters(tokenizer, **probabilities):
    return [{tokenizer.convert_tokens_to_ids(t): p for t, p in probabilities.items()}]


def test_safe_is_biased_where_the_members_are_sure_on_average():
    """Of "a" the drafter is sure with 0.9, the verifier with 0.3. "a" is kept wherever it was
    drafted, since the mean is 0.6; and that is what the mixture says of it."""
    pair = [
        scripted(TOYS[0], letters(TOYS[0], a=0.9, b=0.0999), "ab", "drafter"),
        scripted(TOYS[0], letters(TOYS[0], a=0.3, b=0.6999), "ab", "verifier"),
    ]
    runs = 300
    share = {}
    for when in ("safe", "always"):
        method = SAFE(pair[0], pair[1:], ensemble_when=when, sharpen=None)
        texts = Counter(
            method.generate("ab", max_new_tokens=1, do_sample=True, seed=seed).text
            for seed in range(runs)
        )
        share[when] = texts["a"] / runs
    assert share["safe"] == pytest.approx(0.9, abs=0.05)
    assert share["always"] == pytest.approx(0.6, abs=0.08)


def test_the_seed_decides_the_text_and_the_trace_notes_it():
    method = SAFE(toys()[0], toys()[1:])
    options = {"max_new_tokens": 12, "do_sample": True}
    texts = [method.generate("ab", seed=seed, **options).text for seed in (0, 1, 0)]
    assert texts[0] == texts[2] != texts[1]
    unseeded = method.generate("ab", **options)
    again = method.generate("ab", seed=unseeded.rounds.options["seed"], **options)
    assert again.token_ids == unseeded.token_ids
