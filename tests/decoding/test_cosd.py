"""CoSD as a whole: what it promises of texts, caches and the work that it takes."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from ensemble_decoding import CoSD, Member, Trace
from tests.decoding.members_for_tests import PROMPT, member, pass_counter, three_families
from tests.decoding.models_for_tests import ARCHITECTURES
from tests.decoding.scripted_model import scripted
from tests.decoding.test_architectures import model
from tests.decoding.test_cosd_rule import BYTES, writing
from tests.decoding.test_specem import assert_cache_is_a_fresh_prefill, own_greedy
from tests.decoding.tokenizers_for_tests import (
    GERMAN,
    byte_level_tokenizer,
    sentencepiece_tokenizer,
)

PIECES = sentencepiece_tokenizer()
# Something is replaced in most rounds of the random models, and something kept.
METHOD = {"alpha": 0.08, "beta": 0.9}


@cache
def greedy(architecture, dtype):
    if architecture in ARCHITECTURES:
        one = member(architecture, dtype=dtype)
    else:
        one = Member(model(architecture).to(dtype), BYTES)
    return one, own_greedy(one, PROMPT, 256)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("architecture", ["llama", "gemma3", "GPT2"])
@pytest.mark.parametrize(
    "method",
    [{}, {"alpha": 1.0, "beta": 0.0, "draft_length": 7}, {"alpha": 0.3, "second_look": True}],
    ids=str,
)
def test_a_model_with_itself_gives_its_own_greedy_output(architecture, dtype, method):
    one, expected = greedy(architecture, dtype)
    output = CoSD(one, Member(one.model, one.tokenizer), **method).generate(
        PROMPT, max_new_tokens=256
    )
    assert output.token_ids == [expected] * 2
    assert len(expected) == 256 or output.finish_reason == "stop"
    reasons = {d.reason for round_ in output.rounds for d in round_.decisions}
    assert reasons == {"the assistant agrees"}


def test_equal_tables_keep_ids_of_equal_bytes_apart():
    """A SentencePiece model may choose a byte token where its tokenizer has a letter."""
    one = member("gemma3", PIECES, seed=1)
    expected = own_greedy(one, PROMPT, 64)
    assert any(one.table.token_id(one.table.spell((i,))) != i for i in expected[:-1])
    method = CoSD(one, [Member(one.model, one.tokenizer)] * 2, alpha=1.0, beta=0.0)
    assert method.generate(PROMPT, max_new_tokens=64).token_ids == [expected] * 3
    # What another model puts in comes as the id that it chose.
    drafter = member(tokenizer=PIECES, seed=2)
    always = {"alpha": 1.0, "beta": 0.0, "draft_length": 1}
    written = CoSD(drafter, one, **always).generate(PROMPT, max_new_tokens=64)
    assert written.token_ids == [expected] * 2


@pytest.mark.parametrize("draft_length", [1, 2, 5, 9])
def test_the_draft_length_changes_nothing_where_all_share_a_tokenizer(draft_length):
    members = [member(seed=seed) for seed in (1, 2)]
    texts = [
        CoSD(*members, **METHOD, draft_length=length).generate(PROMPT, max_new_tokens=40).token_ids
        for length in (3, draft_length)
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("second_look", [False, True])
@pytest.mark.parametrize("select", ["most_confident", "cascade"])
def test_after_each_commit_every_cache_is_a_fresh_prefill(select, second_look):
    drafter, *assistants = three_families()
    method = CoSD(
        drafter, assistants, **METHOD, select=select, unsure_below=0.09, second_look=second_look
    )
    run = method.stream(PROMPT, max_new_tokens=60, do_sample=True, seed=3, temperature=1.5)
    for _ in run:
        context = run.contexts[0]
        assert context.member.table.spell(context.response_ids) == run.data
        if run.finish_reason is None:
            assert_cache_is_a_fresh_prefill(context)
        for context in run.contexts[1:]:
            if not context.ids:
                continue
            assert_cache_is_a_fresh_prefill(context)
            encoded = context.member.encoder.encode(run.data).ids
            read = context.response_ids
            assert read == encoded[: len(read)]
            # All but a few ids at the end, where the text was still to change.
            assert len(read) >= len(encoded) - 12 or select == "cascade"
    reasons = {d.reason for round_ in run.output.rounds for d in round_.decisions}
    assert "replaced" in reasons
    assert second_look == ("kept after a second look" in reasons)


def test_nothing_is_fed_twice_but_what_was_rejected():
    """One table: the drafter is fed each draft but its last token, and what stands in the place of
    that; the assistant each draft but its last token, and what it put in."""
    members = [member(seed=seed) for seed in (1, 2)]
    counters = [pass_counter(one.model) for one in members]
    run = CoSD(*members, **METHOD, draft_length=4).stream(PROMPT, max_new_tokens=40)
    prompt = len(members[0].encode_prompt(PROMPT))
    fed = [prompt, prompt]
    read = prompt  # of the text, by the assistant
    for piece in run:
        drafted, decisions = len(piece.round.candidates[0].token_ids[0]), piece.round.decisions
        # The last token of a draft that is kept, or what replaces one, is fed at the commit.
        fed[0] += drafted - 1 + (run.finish_reason is None)
        length = len(run.contexts[0].ids) - len(decisions)
        fed[1] += length + drafted - read
        read = length + len(decisions) - (piece.round.reason == "replaced")
        assert [counter.tokens for counter in counters] == fed
    assert {round_.reason for round_ in run.trace} == {"replaced", "kept as drafted"}
    for usage, counter in zip(run.output.usage, counters, strict=True):
        total = usage.prompt_tokens + usage.drafted_tokens + usage.verified_tokens
        assert total + usage.committed_tokens == counter.tokens


def test_an_assistant_reads_only_what_is_new():
    """Between tokenizers, too, the text before the last joint is not read again."""
    drafter, assistant = three_families()[:2]
    counter = pass_counter(assistant.model)
    output = CoSD(drafter, assistant, **METHOD).generate(PROMPT, max_new_tokens=120)
    prompt = len(assistant.encode_prompt(PROMPT))
    read = sum(len(round_.candidates[0].token_ids[1]) for round_ in output.rounds)
    assert counter.tokens - prompt < 2 * read


@pytest.mark.parametrize("tokenizer", [BYTES, PIECES, byte_level_tokenizer(GERMAN)])
def test_a_cascade_asks_the_next_only_where_it_must(tokenizer):
    drafter = scripted(BYTES, writing(BYTES, [("Z", 0.3)]), PROMPT, "draft")
    last = scripted(tokenizer, writing(tokenizer, [("W", 0.9)]), PROMPT, "last")
    sure = scripted(BYTES, writing(BYTES, [("K", 0.8)]), PROMPT, "sure")
    options = {"select": "cascade", "draft_length": 1}
    method = CoSD(drafter, [sure, last], **options)
    method.generate(PROMPT, max_new_tokens=1)
    last.model.fed.clear()  # of how its attention was checked when it was first used
    output = method.generate(PROMPT, max_new_tokens=6)
    assert output.text == "K" * 6
    assert last.model.fed == []
    assert output.usage[2].forward_passes == 0
    # Its ids are there all the same.
    assert last.table.spell(output.token_ids[2]) == b"K" * 6
    unsure = scripted(BYTES, writing(BYTES, [("K", 0.45)]), PROMPT, "unsure")
    output = CoSD(drafter, [unsure, last], **options).generate(PROMPT, max_new_tokens=6)
    assert output.text == "W" * 6
    assert {d.decided_by for round_ in output.rounds for d in round_.decisions} == {2}
    # The last one that is asked decides, also to keep.
    keeps = scripted(tokenizer, writing(tokenizer, [("Z", 0.3)]), PROMPT, "keeps")
    output = CoSD(drafter, [unsure, keeps], **options).generate(PROMPT, max_new_tokens=6)
    assert output.text == "Z" * 6


def test_the_most_confident_of_those_that_would_replace_wins():
    drafter = scripted(BYTES, writing(BYTES, [("Z", 0.3)]), PROMPT, "draft")
    agreeing, less, more, same = (
        scripted(BYTES, writing(BYTES, [word]), PROMPT, f"{word}")
        for word in (("Z", 0.95), ("K", 0.6), ("W", 0.7), ("Q", 0.7))
    )
    for assistants, chosen in (
        ([agreeing, less, more], 3),
        ([same, less, more], 1),
        ([more, same, agreeing], 1),
    ):
        output = CoSD(drafter, assistants, draft_length=1).generate(PROMPT, max_new_tokens=1)
        assert output.rounds[0].decisions[0].decided_by == chosen


def test_the_trace_survives_a_file(tmp_path):
    drafter, *assistants = three_families()
    output = CoSD(drafter, assistants, **METHOD, max_entropy=5.2).generate(
        PROMPT, max_new_tokens=30
    )
    shown = output.rounds.options
    assert {**shown, **METHOD, "max_entropy": 5.2, "select": "most_confident"} == shown
    assert output.rounds.method == "cosd"
    output.rounds.save(tmp_path / "trace.json")
    assert Trace.load(tmp_path / "trace.json") == output.rounds
    decision = output.rounds[0].decisions[0]
    for changes, message in (
        ({"decided_by": 3}, "decided_by must be the place of a member, got 3"),
        ({"probabilities": [0.5]}, "probabilities must have an entry for each of the 3 members"),
        ({"alternatives": [b""] * 4}, "alternatives must have an entry for each .* got 4"),
    ):
        output.rounds[0].decisions[0] = replace(decision, **changes)
        output.rounds.save(tmp_path / "trace.json")
        with pytest.raises(ValueError, match=rf"rounds\[0\].decisions\[0\].{message}"):
            Trace.load(tmp_path / "trace.json")
    output.rounds[0].decisions[0] = decision
    for decision in (d for round_ in output.rounds for d in round_.decisions):
        assert len(decision.probabilities) == len(decision.alternatives) == 3
        assert (decision.decided_by is None) == (decision.reason != "replaced")
