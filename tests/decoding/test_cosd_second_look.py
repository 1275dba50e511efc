"""CoSD's second look, on models whose next token depends on the last one alone."""

import pytest

from ensemble_decoding import CoSD, Member
from tests.decoding.members_for_tests import PROMPT
from tests.decoding.scripted_model import ScriptedModel
from tests.decoding.test_cosd_rule import BYTES, READERS, one_token


class LastTokenModel(ScriptedModel):
    """`after` maps a letter to the probabilities of those that follow; "" stands for all others."""

    def __init__(self, tokenizer, after):
        names = list(after)
        scripts = [{one_token(tokenizer, t): p for t, p in after[name].items()} for name in names]
        super().__init__(len(tokenizer), scripts, 0)
        self.places = {one_token(tokenizer, name): i for i, name in enumerate(names) if name}
        self.other = names.index("")

    def forward(self, input_ids=None, logits_to_keep=0, **keywords):
        said = super().forward(input_ids=input_ids, logits_to_keep=logits_to_keep, **keywords)
        entries = [self.places.get(token, self.other) for token in input_ids[0].tolist()]
        said.logits = self.rows[entries][None, -logits_to_keep:]
        return said


def speaking(tokenizer, after, name):
    return Member(LastTokenModel(tokenizer, after), tokenizer, name=name)


DRAFTER = {"": {"Z": 0.4}, "Z": {"X": 0.9}, "X": {"X": 0.9}, "K": {"Y": 0.9}, "Y": {"J": 0.9}}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("likes", "written"), [(0.8, "KYJ"), (0.01, "ZXX")])
def test_a_replacement_stands_if_the_text_behind_it_is_liked_better(reader, likes, written):
    tokenizer = READERS[reader]
    after = {
        "": {"K": 0.5, "Z": 0.2},
        "Z": {"X": 0.5},
        "X": {"X": 0.5},
        "K": {"Y": likes},
        "Y": {"J": likes},
    }
    drafter = speaking(BYTES, DRAFTER, "draft")
    assistant = speaking(tokenizer, after, "assistant")
    method = CoSD(drafter, assistant, draft_length=3, second_look=True)
    run = method.stream(PROMPT, max_new_tokens=3)
    pieces = list(run)
    assert run.output.text == written
    reason = "replaced" if likes > 0.5 else "kept after a second look"
    assert pieces[0].round.decisions[0].reason == reason
    plain = CoSD(drafter, assistant, draft_length=3).generate(PROMPT, max_new_tokens=3)
    assert plain.rounds[0].decisions[0].reason == "replaced"
    for context in run.contexts[:1]:
        assert context.cache.staged == 0


def test_no_gain_is_no_reason_to_replace():
    """Both versions end at once, and the assistant gives both the same."""
    drafter = speaking(BYTES, {"": {"Z": 0.4}}, "draft")
    holes = {"": {"K": 0.3, "Z": 0.3}}
    assistant = speaking(BYTES, holes, "assistant")
    tied = one_token(BYTES, "K"), one_token(BYTES, "Z")
    assert tied[0] < tied[1]  # the lower one is its likeliest
    method = CoSD(drafter, assistant, draft_length=1, second_look=True)
    output = method.generate(PROMPT, max_new_tokens=1)
    assert output.text == "Z"
    assert output.rounds[0].decisions[0].reason == "kept after a second look"


def test_an_end_of_text_is_looked_at_again():
    after = {"": {"Z": 0.2}, "Z": {"X": 0.9}, "X": {"X": 0.9}}
    drafter = speaking(BYTES, DRAFTER, "draft")
    assistant = speaking(BYTES, after, "assistant")
    assistant.model.rows[0][BYTES.eos_token_id] = -0.9
    for length, text in ((1, ""), (5, "ZXXXX")):
        # One token of probability 0.41 against one of 0.2, or against those behind it too.
        method = CoSD(drafter, assistant, draft_length=length, second_look=True)
        assert method.generate(PROMPT, max_new_tokens=5).text == text
