"""SAFE's caches and texts: what each member holds after a commit, and how often it read it."""

import pytest

from ensemble_decoding import SAFE
from tests.decoding.members_for_tests import PROMPT, member, pass_counter
from tests.decoding.scripted_model import saying, scripted
from tests.decoding.test_safe_steps import MEMBERS
from tests.decoding.test_specem import assert_cache_is_a_fresh_prefill
from tests.decoding.text_oracle import NaiveEncoder
from tests.decoding.tokenizers_for_tests import (
    GERMAN,
    MISSING_BYTES,
    byte_level_tokenizer,
    sentencepiece_tokenizer,
)
from tests.decoding.well_read_models import well_read

BYTES = byte_level_tokenizer()
PIECES = sentencepiece_tokenizer()
HOLES = byte_level_tokenizer(missing_bytes=MISSING_BYTES)
WHENS = ("safe", "always", "never")
KINDS = ["bytes, pieces", "pieces, bytes", "bytes, pieces, German, the same"]


def encoded(context, run):
    """A reader's ids of the prompt and of all that was committed."""
    if context.member.table.fingerprint == run.contexts[0].member.table.fingerprint:
        ids = [i for i in run.contexts[0].response_ids if not context.member.is_end_of_text(i)]
    else:
        ids = NaiveEncoder(context.member.tokenizer).encode(run.data)[0]
    return [*context.member.encode_prompt(PROMPT), *ids]


def shared(first, second):
    pairs = enumerate(zip(first, second, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(first), len(second)))


@pytest.mark.parametrize("options", [{}, {"do_sample": True, "seed": 2, "temperature": 2.0}])
@pytest.mark.parametrize("when", WHENS)
@pytest.mark.parametrize("kinds", KINDS)
def test_after_each_commit_every_cache_is_a_fresh_prefill(kinds, when, options):
    drafter, *verifiers = MEMBERS[kinds]
    run = SAFE(drafter, verifiers, ensemble_when=when).stream(PROMPT, max_new_tokens=40, **options)
    for _ in run:
        for j, context in enumerate(run.contexts):
            if j and when == "never":
                assert context.ids == []
                continue
            if run.finish_reason is None or j:
                assert_cache_is_a_fresh_prefill(context)
            if j:
                whole = encoded(context, run)
                assert context.ids == whole[: len(context.ids)]
    assert len(run.output.rounds) > 3


@pytest.mark.parametrize("kinds", KINDS)
def test_a_verifier_reads_only_what_is_new_to_it(kinds):
    """Of a draft what its context lacks, and one id before that, whose logits it has not kept."""
    drafter, *verifiers = MEMBERS[kinds]
    counters = [pass_counter(one.model) for one in MEMBERS[kinds]]
    before = [0] * len(counters)
    run = SAFE(drafter, verifiers).stream(PROMPT, max_new_tokens=60)
    known = [one.encode_prompt(PROMPT) for one in MEMBERS[kinds]]
    reread = 0
    for piece in run:
        (candidate,) = piece.round.candidates
        start = run.data[: len(run.data) - len(piece.round.data)] + candidate.data
        for j, counter in enumerate(counters):
            prompt = len(run.contexts[j].member.encode_prompt(PROMPT))
            new = counter.tokens - before[j] - (prompt if before[j] == 0 else 0)
            before[j] = counter.tokens
            if j == 0:
                assert new <= len(candidate.token_ids[0]) + 2
                continue
            same = run.readers[j].shares_ids
            ids = candidate.token_ids[j] if same else None
            if same:
                old = len(run.contexts[0].response_ids) - piece.round.committed_tokens[0]
                ids = [*run.contexts[0].response_ids[:old], *ids]
            else:
                ids = NaiveEncoder(run.contexts[j].member.tokenizer).encode(start)[0]
            whole = [*run.contexts[j].member.encode_prompt(PROMPT), *ids]
            missing = len(whole) - shared(known[j], whole)
            # An id is fed again where a later one has changed how the text behind it is encoded.
            assert missing <= new <= missing + (0 if same else 1)
            reread += new - missing
            known[j] = list(run.contexts[j].ids)
    assert reread <= (len(counters) - 1) * len(run.output.rounds)
    for usage, counter in zip(run.output.usage, counters, strict=True):
        fed = usage.drafted_tokens + usage.verified_tokens + usage.committed_tokens
        assert counter.tokens == usage.prompt_tokens + fed


@pytest.mark.parametrize("when", WHENS)
@pytest.mark.parametrize(
    "text", ["a 😀 b 😀", "你好,世界 🦜", "👩‍👩‍👧 Zürich — привет", "", "Incorrect"]
)
def test_characters_of_several_tokens_come_through_whole(text, when):
    tokenizers = [BYTES, PIECES, byte_level_tokenizer(GERMAN), HOLES]
    for first in range(3):
        ordered = tokenizers[first:] + tokenizers[:first]
        if set(text.encode()) & set(MISSING_BYTES):
            ordered.remove(HOLES)
        # All say the same, each in its own tokens, the first one the loudest.
        members = [
            scripted(one, saying(one, text, 0.9 if j == 0 else 0.4), PROMPT, str(j))
            for j, one in enumerate(ordered)
        ]
        weights = [9.0] + [0.5] * (len(members) - 1)
        for length in (1, 2, 5):
            method = SAFE(members[0], members[1:], ensemble_when=when, draft_length=length)
            method.weights = [weight / sum(weights) for weight in weights]
            run = method.stream(PROMPT, max_new_tokens=80)
            pieces = [piece.text for piece in run]
            assert "".join(pieces) == run.output.text == text
            assert "\ufffd" not in "".join(pieces)
            assert run.output.finish_reason == "stop"


@pytest.mark.parametrize("when", WHENS)
@pytest.mark.parametrize("max_new_tokens", range(1, 21))
def test_the_limit_is_exact_where_all_share_a_tokenizer(max_new_tokens, when):
    drafter, *verifiers = MEMBERS["all the same"]
    method = SAFE(drafter, verifiers, ensemble_when=when, draft_length=1 + max_new_tokens % 7)
    output = method.generate(PROMPT, max_new_tokens=max_new_tokens)
    assert output.finish_reason == "length"
    assert [len(ids) for ids in output.token_ids] == [max_new_tokens] * 3
    assert sum(round_.committed_tokens[0] for round_ in output.rounds) == max_new_tokens


@pytest.mark.parametrize("when", ["safe", "always"])
def test_bytes_that_a_verifier_cannot_write(when):
    """It reads the text without them, and says nothing in front of them."""
    text = " the quick — queen q"
    speaker = scripted(BYTES, saying(BYTES, text, 0.45), PROMPT, "speaker")
    reader = well_read(member(tokenizer=HOLES, seed=3, name="holes"))
    method = SAFE(speaker, [reader], ensemble_when=when, weights=[50, 1])
    run = method.stream(PROMPT, max_new_tokens=60)
    for _ in run:
        context = run.contexts[1]
        assert_cache_is_a_fresh_prefill(context)
        ids, dropped = NaiveEncoder(HOLES).encode(run.data)
        assert context.response_ids == ids[: len(context.response_ids)]
        assert run.unspelled[1] == dropped
    output = run.output
    assert (output.text, output.finish_reason) == (text, "stop")
    assert output.unspelled == [b"", b"q\xe2q" + b"q"]
    assert HOLES.decode(output.token_ids[1][:3]).startswith(" the")


@pytest.mark.parametrize("when", ["safe", "always"])
def test_a_drafter_without_a_token_for_the_choice_keeps_its_own(when):
    letter, other = BYTES.convert_tokens_to_ids("q"), HOLES.convert_tokens_to_ids("a")
    drafter = scripted(HOLES, [{other: 0.4}], PROMPT, "drafter")
    verifier = scripted(BYTES, [{letter: 0.9}], PROMPT, "verifier")
    method = SAFE(drafter, [verifier], ensemble_when=when)
    output = method.generate(PROMPT, max_new_tokens=7)
    assert output.text == "aaaaaaa"
    decisions = [decision for round_ in output.rounds for decision in round_.decisions]
    assert all("cannot write" in d.reason for d in decisions)
    assert [d.chosen for d in decisions] == [b"a"] * 7
    assert all(d.mixture[0] == d.mixture[1] > 0 for d in decisions)


@pytest.mark.parametrize("when", ["safe", "always"])
def test_a_drafter_that_would_end_ends_where_it_cannot_write_the_choice(when):
    drafter = scripted(HOLES, [{HOLES.eos_token_id: 0.4}], PROMPT, "drafter")
    verifier = scripted(BYTES, [{BYTES.convert_tokens_to_ids("q"): 0.9}], PROMPT, "verifier")
    output = SAFE(drafter, [verifier], ensemble_when=when).generate(PROMPT, max_new_tokens=7)
    assert (output.text, output.finish_reason) == ("", "stop")
    assert output.token_ids == [[HOLES.eos_token_id], [BYTES.eos_token_id]]


def test_a_verifier_alone_may_end_the_text():
    endless = byte_level_tokenizer(GERMAN, eos=False)
    letter = endless.convert_tokens_to_ids("a")
    for draft_length in (1, 5):
        drafter = scripted(endless, [{letter: 0.3}], PROMPT, "endless")
        verifier = scripted(BYTES, saying(BYTES, "aaa", 0.9), PROMPT, "speaker")
        for when in ("safe", "always"):
            method = SAFE(drafter, [verifier], ensemble_when=when, draft_length=draft_length)
            output = method.generate(PROMPT, max_new_tokens=50)
            assert (output.text, output.finish_reason) == ("aaa", "stop")
            assert output.token_ids[0] == [letter] * 3
            assert output.token_ids[1][-1] == BYTES.eos_token_id


def test_a_verifier_without_end_of_text_gives_it_nothing():
    endless = byte_level_tokenizer(GERMAN, eos=False)
    drafter = scripted(BYTES, saying(BYTES, " the", 0.8), PROMPT, "speaker")
    verifier = scripted(endless, [{endless.convert_tokens_to_ids("a"): 0.3}], PROMPT, "endless")
    output = SAFE(drafter, [verifier]).generate(PROMPT, max_new_tokens=50)
    assert (output.text, output.finish_reason) == (" the", "stop")
    last = output.rounds[-1].decisions[-1]
    assert last.chosen_end
    assert last.probabilities == [pytest.approx(0.8), 0.0]
    assert last.mean == pytest.approx(0.4)
