"""How the first member's tokens count where it writes a character late, or not at all."""

import pytest

from ensemble_decoding import TokenEnsemble
from tests.decoding.members_for_tests import PROMPT
from tests.decoding.scripted_model import saying, scripted
from tests.decoding.text_oracle import bytes_of_ids
from tests.decoding.tokenizers_for_tests import byte_level_tokenizer, sentencepiece_tokenizer

BYTES = byte_level_tokenizer()
PIECES = sentencepiece_tokenizer()
# In BYTES two tokens, of which PIECES has none; in PIECES four.
PARROT = " 🦜"


def pair(text, first=PIECES):
    """A first member that has no say, and one that writes the text."""
    quiet = scripted(first, [{first.convert_tokens_to_ids("a"): 0.5}], PROMPT, "first")
    return [quiet, scripted(BYTES, saying(BYTES, text), PROMPT, "second")]


def run_of(members, **options):
    run = TokenEnsemble(members, alignment="union", weights=[0, 1]).stream(PROMPT, **options)
    texts = [piece.text for piece in run]
    assert "".join(texts) == run.output.text
    for context in run.contexts:
        assert context.cache.length == len(context.ids)
    return run


def test_a_character_of_several_tokens_is_written_late():
    own = [BYTES.convert_ids_to_tokens(i) for i in BYTES(PARROT)["input_ids"]]
    assert len(own) == 2
    run = run_of(pair(f"to{PARROT} b"))
    assert (run.output.text, run.output.finish_reason) == (f"to{PARROT} b", "stop")
    first, second = run.contexts
    assert first.member.table.spell(first.response_ids) == run.data
    lengths = [round_.committed_tokens[0] for round_ in run.trace]
    # The space at once, the four bytes behind it with the second token.
    place = lengths.index(4)
    assert lengths[place - 1] == 1
    assert second.response_ids == BYTES(f"to{PARROT} b")["input_ids"] + [BYTES.eos_token_id]


@pytest.mark.parametrize("max_new_tokens", range(1, 12))
def test_the_limit_drops_a_character_that_it_would_cut(max_new_tokens):
    text = f"to{PARROT} b{PARROT}"
    run = run_of(pair(text), max_new_tokens=max_new_tokens)
    output, first = run.output, run.contexts[0]
    assert text.startswith(output.text)
    assert len(output.token_ids[0]) <= max_new_tokens
    assert first.member.table.spell(first.response_ids).decode() == output.text
    assert run.data == output.text.encode() + output.pending
    whole = run_of(pair(text)).contexts[0]
    if output.finish_reason == "length":
        # One more character would have been too much; a space goes with the parrot behind it.
        rest = text[len(output.text) :]
        more = (output.text + rest[: 2 if rest.startswith(PARROT) else 1]).encode()
        needed = next(
            n
            for n in range(len(whole.response_ids) + 1)
            if len(whole.member.table.spell(whole.response_ids[:n])) >= len(more)
        )
        assert needed > max_new_tokens
    else:
        assert output.text == text


@pytest.mark.parametrize("stop", ["🦜", " 🦜", "🦜 b", " b"])
def test_a_stop_string_behind_a_late_character_keeps_it(stop):
    text = f"to{PARROT} b and"
    run = run_of(pair(text), stop_strings=stop)
    end = text.index(stop) + len(stop)
    assert (run.output.text, run.output.finish_reason) == (text[:end], "stop")
    for context in run.contexts:
        spelled = context.member.table.spell(context.response_ids)
        assert run.data.startswith(spelled)
        assert len(run.data) - len(spelled) <= 2  # of a token that goes on behind the string
    if stop.endswith("🦜"):
        assert run.contexts[0].member.table.spell(run.contexts[0].response_ids) == run.data


@pytest.mark.parametrize("limit", [1, 5])
def test_a_first_member_without_a_token_for_the_text_counts_its_rounds(limit):
    holes = byte_level_tokenizer(missing_bytes=b"q")
    quiet = scripted(holes, [{holes.convert_tokens_to_ids("a"): 0.5}], PROMPT, "first")
    letter = BYTES.convert_tokens_to_ids("q")
    members = [quiet, scripted(BYTES, [{letter: 0.9}], PROMPT, "second")]
    run = TokenEnsemble(members, weights=[0, 1]).stream(PROMPT, max_new_tokens=limit)
    rounds = list(zip(range(3 * limit), run, strict=False))
    assert len(rounds) == limit
    assert (run.output.text, run.output.finish_reason) == ("q" * limit, "length")
    assert run.output.unspelled[0] == b"q" * limit


def test_waiting_steps_do_not_count_for_the_limit():
    run = run_of(pair(PARROT * 3, first=PIECES), max_new_tokens=15)
    assert (run.output.text, len(run.output.token_ids[0])) == (PARROT * 3, 15)


def test_a_main_member_that_waits_does_not_choose_alone():
    letter = PIECES.convert_tokens_to_ids("a")
    main = scripted(PIECES, [{letter: 0.3}, {letter: 0.9}], PROMPT, "main")
    other = scripted(BYTES, saying(BYTES, PARROT), PROMPT, "other")
    method = TokenEnsemble([main, other], weights=[1, 9], threshold=0.5)
    output = method.generate(PROMPT, max_new_tokens=8)
    assert output.text == PARROT + "aaa"
    assert [round_.ensembled for round_ in output.rounds] == [True, True, False, False, False]
    assert [round_.voters for round_ in output.rounds] == [[0, 1], [1], [0], [0], [0]]


def test_a_token_that_goes_on_behind_a_stop_string_is_cut_while_another_member_is_late():
    """A token of BYTES ends the woman and begins the joiner behind her."""
    ids = {token: number for number, token in bytes_of_ids(BYTES).items()}
    start, end = ids["👩‍".encode()[:2]], ids["👩‍".encode()[2:6]]
    quiet, _ = pair("")
    second = scripted(BYTES, [{start: 0.9}, {end: 0.9}], PROMPT, "second")
    run = run_of([quiet, second], stop_strings="👩")
    assert (run.output.text, run.output.finish_reason) == ("👩", "stop")
    assert run.contexts[0].member.table.spell(run.output.token_ids[0]) == "👩".encode()
    assert run.output.token_ids[1] == [start]
