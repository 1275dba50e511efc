"""SAFE as a whole: what it promises, on tiny models."""

import pytest
import torch

from ensemble_decoding import SAFE, Member, Trace
from tests.decoding.members_for_tests import PROMPT, member, pass_counter
from tests.decoding.models_for_tests import ARCHITECTURES
from tests.decoding.scripted_model import saying, scripted
from tests.decoding.test_architectures import model
from tests.decoding.test_safe_steps import MEMBERS
from tests.decoding.test_specem import own_greedy
from tests.decoding.tokenizers_for_tests import (
    GERMAN,
    byte_level_tokenizer,
    permuted_tokenizer,
    sentencepiece_tokenizer,
)
from tests.decoding.well_read_models import well_read

BYTES = byte_level_tokenizer()
PIECES = sentencepiece_tokenizer()


# Models that do not end their text early.
SEEDS = {"llama": 4, "gemma3": 0}


def plain(architecture, dtype):
    if architecture in ARCHITECTURES:
        return member(architecture, dtype=dtype, seed=SEEDS[architecture])
    return Member(model(architecture).to(dtype), BYTES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("architecture", ["llama", "gemma3", "GPT2"])
def test_a_model_with_itself_gives_its_own_greedy_output(architecture, dtype):
    one = plain(architecture, dtype)
    expected = own_greedy(one, PROMPT, 256)
    assert len(expected) == 256
    twin = Member(one.model, one.tokenizer)
    for method in ({}, {"ensemble_when": "always", "sharpen": None}):
        output = SAFE(one, [twin], **method).generate(PROMPT, max_new_tokens=256)
        assert output.token_ids == [expected] * 2


@pytest.mark.parametrize("kinds", ["bytes, pieces", "pieces, bytes", "bytes, permuted"])
def test_never_is_the_drafter_alone(kinds):
    drafter, verifier = MEMBERS[kinds]
    expected = own_greedy(drafter, PROMPT, 96)
    counter = pass_counter(verifier.model)
    for method in ({"ensemble_when": "never"}, {"weights": [1, 0]}, {"weights": [0.5, 0]}):
        output = SAFE(drafter, [verifier], **method).generate(PROMPT, max_new_tokens=96)
        kept = len(output.token_ids[0])
        assert output.token_ids[0] == expected[:kept]
        assert kept > 92  # the limit may cut a character
        assert counter.tokens == output.usage[1].forward_passes == 0
        assert not output.ensembled_share


@pytest.mark.parametrize("sharpen", ["prefix", "geometric", None])
def test_where_all_share_a_tokenizer_the_draft_length_changes_nothing(sharpen):
    drafter, *verifiers = MEMBERS["all the same"]
    results = []
    for draft_length in (1, 2, 3, 5, 7, 40):
        method = SAFE(drafter, verifiers, sharpen=sharpen, draft_length=draft_length)
        output = method.generate(PROMPT, max_new_tokens=60)
        decisions = [decision for round_ in output.rounds for decision in round_.decisions]
        results.append((output.token_ids, [(d.reason, d.chosen) for d in decisions]))
    assert all(result == results[0] for result in results)
    assert len({reason for reason, _ in results[0][1]}) > 1


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_any_number_of_members_writes_one_text(count):
    tokenizers = [BYTES, PIECES, byte_level_tokenizer(GERMAN), permuted_tokenizer(PIECES), BYTES]
    members = [well_read(member(tokenizer=t, seed=j)) for j, t in enumerate(tokenizers[:count])]
    output = SAFE(members[0], members[1:]).generate(PROMPT, max_new_tokens=24)
    text = output.text.encode() + output.pending
    for one, ids in zip(members, output.token_ids, strict=True):
        assert one.table.spell(i for i in ids if not one.is_end_of_text(i)) == text
    assert len(output.usage) == count
    assert all(usage.forward_passes for usage in output.usage)


def splitter():
    """A tokenizer for which `Incorrect` is three tokens, while it is one for the others."""
    tokenizer = byte_level_tokenizer("Inc\norr\nect\n" * 9, 256 + 3 + 6)
    assert tokenizer.tokenize("Incorrect!") == ["Inc", "orr", "ect", "!"]
    assert BYTES.tokenize("Incorrect!") == ["Incorrect", "!"]
    return tokenizer


@pytest.mark.parametrize("draft_length", [4, 5, 7])
def test_the_example_of_the_paper(draft_length):
    """A verifier's token begins in front of "Inc" and of "!" alone."""
    tokenizer = splitter()
    drafter = scripted(tokenizer, saying(tokenizer, "Incorrect!", 0.45), PROMPT, "drafter")
    other = BYTES.convert_tokens_to_ids("z")
    verifier = scripted(BYTES, [{other: 0.3}], PROMPT, "verifier")
    output = SAFE(drafter, [verifier], draft_length=draft_length, sharpen=None).generate(
        PROMPT, max_new_tokens=4
    )
    assert output.text == "Incorrect!"
    decisions = [decision for round_ in output.rounds for decision in round_.decisions]
    assert [(d.drafted, d.reason) for d in decisions] == [
        (b"Inc", "ensembled"),
        (b"orr", "no boundary for a verifier"),
        (b"ect", "no boundary for a verifier"),
        (b"!", "ensembled"),
    ]
    assert [d.probabilities[1] is None for d in decisions] == [False, True, True, False]
    assert output.ensembled_share == 0.5


def test_the_first_token_of_a_draft_may_be_no_boundary():
    """The word is told apart by what the next draft brings."""
    tokenizer = splitter()
    drafter = scripted(tokenizer, saying(tokenizer, "Incorrect!", 0.45), PROMPT, "drafter")
    verifier = scripted(BYTES, [{BYTES.convert_tokens_to_ids("z"): 0.3}], PROMPT, "verifier")
    run = SAFE(drafter, [verifier], draft_length=2, sharpen=None).stream(PROMPT, max_new_tokens=4)
    reasons = [decision.reason for piece in run for decision in piece.round.decisions]
    # With "Incorr" in sight the verifier has "In", "c", "or", "r" or the like.
    assert reasons[2:] == ["no boundary for a verifier", "ensembled"]
    assert run.output.text == "Incorrect!"
    assert run.contexts[1].response_ids == BYTES("Incorrect!")["input_ids"]


def test_the_skip_rule_keeps_what_the_mixture_would_choose_where_all_have_the_bytes():
    """The drafted token is skipped over because verifiers agree, in their own tokens."""
    letter, word = BYTES.convert_tokens_to_ids(["I", "Incorrect"])
    drafter = scripted(BYTES, [{letter: 0.5, word: 0.45}], PROMPT, "drafter")
    tokenizer = byte_level_tokenizer(GERMAN)
    ids = tokenizer.convert_tokens_to_ids(["I", "n"])
    verifier = scripted(tokenizer, [{ids[0]: 0.9}, {ids[1]: 0.9}], PROMPT, "verifier")
    output = SAFE(drafter, [verifier], draft_length=1).generate(PROMPT, max_new_tokens=1)
    ((decision,),) = [round_.decisions for round_ in output.rounds]
    assert (decision.reason, decision.same_bytes) == ("all verifiers agree", True)
    assert decision.chosen == b"I"


@pytest.mark.parametrize(
    ("probability", "reason"), [(0.49, "ensembled"), (0.51, "mean probability above one half")]
)
def test_the_mean_of_own_probabilities_must_exceed_one_half(probability, reason):
    """Weighted: the drafter counts three times."""
    a, b = BYTES.convert_tokens_to_ids(["a", "b"])
    drafter = scripted(BYTES, [{a: (4 * probability - 0.3) / 3}], PROMPT, "drafter")
    verifier = scripted(BYTES, [{a: 0.3, b: 0.6}], PROMPT, "verifier")
    method = SAFE(drafter, [verifier], weights=[3, 1])
    output = method.generate(PROMPT, max_new_tokens=1)
    (decision,) = output.rounds[0].decisions
    assert (decision.reason, decision.mean) == (reason, pytest.approx(probability))


@pytest.mark.parametrize(
    ("short", "long", "z", "chosen"),
    [
        (0.22, 0.30, 0.27, "I"),  # all that begins with it: 0.52
        (0.22, 0.52, 0.10, "Incorrect"),  # the mixture is sure without it
        (0.09, 0.12, 0.18, "z"),  # too unlikely itself, though it would have 0.21
    ],
)
def test_prefixes_are_sharpened_where_the_mixture_is_unsure(short, long, z, chosen):
    ids = BYTES.convert_tokens_to_ids(["I", "Incorrect", "z"])
    row = dict(zip(ids, (short, long, z), strict=True))
    drafter, verifier = (scripted(BYTES, [row], PROMPT, name) for name in "ab")
    method = SAFE(drafter, [verifier], ensemble_when="always")
    assert method.generate(PROMPT, max_new_tokens=1).text == chosen


@pytest.mark.parametrize("when", ["safe", "always"])
def test_members_with_equal_tables_hand_each_other_ids(when):
    """Two ids are an "A", and the mixture of ids chooses the one that no tokenizer emits."""
    byte, letter, other = PIECES.convert_tokens_to_ids(["<0x41>", "A", "z"])
    drafter = scripted(PIECES, [{other: 0.3}], PROMPT, "drafter")
    verifier = scripted(PIECES, [{byte: 0.8}], PROMPT, "verifier")
    for alignment, chosen in (("auto", byte), ("union", letter)):
        method = SAFE(drafter, [verifier], ensemble_when=when, alignment=alignment)
        output = method.generate(PROMPT, max_new_tokens=3)
        assert output.token_ids == [[chosen] * 3] * 2
        assert output.text == "AAA"


def most_certain(probabilities, weights):
    return probabilities[torch.special.entr(probabilities).sum(1).argmin()]


def weighted_mean(probabilities, weights):
    return (torch.tensor(weights)[:, None] * probabilities).sum(0)


@pytest.mark.parametrize("ensemble_when", ["safe", "always"])
def test_combine_takes_the_place_of_the_mean(ensemble_when):
    drafter, *verifiers = MEMBERS["bytes, the same, pieces"]
    options = {"ensemble_when": ensemble_when, "weights": [1, 2, 1]}
    expected = SAFE(drafter, verifiers, **options).generate(PROMPT, max_new_tokens=30)
    method = SAFE(drafter, verifiers, combine=weighted_mean, **options)
    output = method.generate(PROMPT, max_new_tokens=30)
    assert output.token_ids == expected.token_ids
    assert output.rounds.options["combine"] == "weighted_mean"
    other = SAFE(drafter, verifiers, combine=most_certain, **options)
    assert other.generate(PROMPT, max_new_tokens=30).text != output.text


@pytest.mark.parametrize("ensemble_when", ["safe", "always", "never"])
def test_the_trace_survives_a_file(tmp_path, ensemble_when):
    drafter, *verifiers = MEMBERS["pieces, bytes"]
    method = SAFE(drafter, verifiers, ensemble_when=ensemble_when, weights=[3, 1])
    output = method.generate(PROMPT, max_new_tokens=20)
    output.rounds.save(tmp_path / "trace.json")
    assert Trace.load(tmp_path / "trace.json") == output.rounds
    shown = {"ensemble_when": ensemble_when, "sharpen": "prefix", "alignment": "union"}
    assert {**output.rounds.options, **shown} == output.rounds.options
    decisions = [decision for round_ in output.rounds for decision in round_.decisions]
    chosen = b"".join(decision.chosen for decision in decisions)
    assert chosen.decode("utf-8", "replace").startswith(output.text)
    mixed = sum(bool(decision.mixture) for decision in decisions) / len(decisions)
    assert output.ensembled_share == mixed
