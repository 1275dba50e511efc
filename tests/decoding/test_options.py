"""Bad options of SpecEM and of a run: each message names the argument, what was expected and what
came."""

import inspect
import math
import re
from dataclasses import fields

import pytest
from transformers import GenerationConfig

from ensemble_decoding import SpecEM
from ensemble_decoding.options import GenerationOptions
from tests.decoding.members_for_tests import PROMPT, member

ONE = member()
HUGE = 10**400  # an int that no float can hold
NAN, INFINITE = math.nan, math.inf
# For each argument: a value, and what its error says was expected and came.
METHOD = {
    "verifiers": [
        (None, TypeError, "must be a list of Member, got NoneType"),
        (ONE, TypeError, "must be a list of Member, got Member"),
        ("ab", TypeError, "must be a list of Member, got str"),
    ],
    "segment_length": [
        (0, ValueError, "must be at least 1, got 0"),
        (-5, ValueError, "must be at least 1, got -5"),
        (2.0, TypeError, "must be an int, got float"),
        ("5", TypeError, "must be an int, got str"),
        (True, TypeError, "must be an int, got bool"),
        (None, TypeError, "must be an int, got NoneType"),
    ],
    "segment_boundary": [
        ("line", ValueError, "must be one of character, word, got 'line'"),
        (None, ValueError, "must be one of character, word, got None"),
        ([], ValueError, "must be one of character, word, got []"),
    ],
    "learning_rate": [
        (-1, ValueError, "must be finite and at least 0, got -1"),
        (NAN, ValueError, "must be finite and at least 0, got nan"),
        (INFINITE, ValueError, "must be finite and at least 0, got inf"),
        (HUGE, ValueError, "must be finite and at least 0, got 1000"),
        ("1", TypeError, "must be a number, got str"),
        (None, TypeError, "must be a number, got NoneType"),
        (True, TypeError, "must be a number, got bool"),
    ],
    "feedback": [
        ("loss", ValueError, "must be one of wins, score, None, got 'loss'"),
        (False, ValueError, "must be one of wins, score, None, got False"),
    ],
    "score": [
        ("loss", ValueError, "must be one of logprob, logit, got 'loss'"),
        (None, ValueError, "must be one of logprob, logit, got None"),
    ],
    "exit_threshold": [
        (-0.1, ValueError, "must be finite and at least 0, got -0.1"),
        (NAN, ValueError, "must be finite and at least 0, got nan"),
        (HUGE, ValueError, "must be finite and at least 0, got 1000"),
        ("0.5", TypeError, "must be a number, got str"),
        (True, TypeError, "must be a number, got bool"),
    ],
}
RUN = {
    "max_new_tokens": [
        (0, ValueError, "must be at least 1, got 0"),
        (-3, ValueError, "must be at least 1, got -3"),
        (2.5, TypeError, "must be an int, got float"),
        (True, TypeError, "must be an int, got bool"),
    ],
    "do_sample": [
        (1, TypeError, "must be a bool, got int"),
        ("yes", TypeError, "must be a bool, got str"),
    ],
    "temperature": [
        (0, ValueError, "must be positive and finite, got 0"),
        (-1.0, ValueError, "must be positive and finite, got -1.0"),
        (NAN, ValueError, "must be positive and finite, got nan"),
        (INFINITE, ValueError, "must be positive and finite, got inf"),
        (HUGE, ValueError, "must be positive and finite, got 1000"),
        ("1", TypeError, "must be a number, got str"),
        (True, TypeError, "must be a number, got bool"),
    ],
    "top_k": [
        (-1, ValueError, "must be at least 0, got -1"),
        (2.0, TypeError, "must be an int, got float"),
        (True, TypeError, "must be an int, got bool"),
    ],
    "top_p": [
        (0, ValueError, "must be above 0 and at most 1, got 0"),
        (1.01, ValueError, "must be above 0 and at most 1, got 1.01"),
        (NAN, ValueError, "must be above 0 and at most 1, got nan"),
        ("0.9", TypeError, "must be a number, got str"),
    ],
    "min_p": [
        (-0.1, ValueError, "must be from 0 to 1, got -0.1"),
        (1.5, ValueError, "must be from 0 to 1, got 1.5"),
        ([], TypeError, "must be a number, got list"),
    ],
    "repetition_penalty": [
        (0, ValueError, "must be positive and finite, got 0"),
        (-1, ValueError, "must be positive and finite, got -1"),
        (INFINITE, ValueError, "must be positive and finite, got inf"),
        (HUGE, ValueError, "must be positive and finite, got 1000"),
        ("1", TypeError, "must be a number, got str"),
    ],
    "seed": [
        (-1, ValueError, "must be at least 0, got -1"),
        (1.5, TypeError, "must be an int, got float"),
        (True, TypeError, "must be an int, got bool"),
        ("1", TypeError, "must be an int, got str"),
    ],
    "stop_strings": [
        ("", ValueError, "must be texts that are not empty, got ''"),
        (["a", ""], ValueError, "must be texts that are not empty, got ''"),
        (["a", 4], TypeError, "must hold texts, got int"),
        (3, TypeError, "must be a text or a list of texts, got int"),
        (b"ab", TypeError, "must be a text or a list of texts, got bytes"),
        ({"a": 1}, TypeError, "must be a text or a list of texts, got dict"),
        ("a\udc00", ValueError, "must be text, got a lone surrogate at character 1"),
    ],
    "eos_token_id": [
        (-1, ValueError, "must hold ids from 0 to 499, got -1"),
        (500, ValueError, "must hold ids from 0 to 499, got 500"),
        ([[2, 500]], ValueError, "must hold ids from 0 to 499, got 500"),
        ("2", TypeError, "must be an id or a list of ids for each member, got str"),
        (2.0, TypeError, "must be an id or a list of ids for each member, got float"),
        (True, TypeError, "must be an id or a list of ids for each member, got bool"),
        ({}, TypeError, "must be an id or a list of ids for each member, got dict"),
        ([None], TypeError, "must be an id or a list of ids for each member, got NoneType"),
        ([True], TypeError, "must hold ids, got bool"),
        ([["a"]], TypeError, "must hold ids, got str"),
        ([[1], [2]], ValueError, "must have an entry for each of the 1 members, got"),
    ],
    "stopping_criteria": [
        (3, TypeError, "must be a list of transformers' criteria, got int"),
        ("x", TypeError, "must be a list of transformers' criteria, got str"),
        ([len, 3], TypeError, "must hold callables, got int"),
    ],
    "streamer": [
        (3, TypeError, "must have put and end, got int"),
        (print, TypeError, "must have put and end, got builtin_function_or_method"),
    ],
    "generation_config": [
        ({}, TypeError, "must be a transformers GenerationConfig, got dict"),
    ],
    # What makes no sense for an ensemble is refused by name and with a reason.
    "num_beams": [
        (4, ValueError, "is not supported, got 4: an ensemble does not search with beams"),
        ("x", ValueError, "is not supported, got 'x': an ensemble does not search with beams"),
    ],
    "num_return_sequences": [(2, ValueError, "is not supported, got 2: a run writes one text")],
    "assistant_model": [
        (ONE.model, ValueError, "is not supported, got LlamaForCausalLM: a member has no assistant")
    ],
    "prompt_lookup_num_tokens": [
        (3, ValueError, "is not supported, got 3: a member drafts by itself")
    ],
    "constraints": [
        ([1], ValueError, "is not supported, got list: constrained decoding needs beams")
    ],
    "force_words_ids": [
        ([[1]], ValueError, "is not supported, got list: constrained decoding needs beams")
    ],
    "penalty_alpha": [
        (0.5, TypeError, "is no option; there are do_sample, eos_token_id, generation_config,")
    ],
    "sample": [
        (True, TypeError, "is no option; there are do_sample, eos_token_id, generation_config,")
    ],
}


# Looked at only with `do_sample`, their types apart.
SAMPLING = ("temperature", "top_k", "top_p", "min_p")


def rows(table):
    return [
        pytest.param(name, *case, id=f"{name}-{index}")
        for name, cases in table.items()
        for index, case in enumerate(cases)
    ]


@pytest.mark.parametrize(("name", "value", "error", "message"), rows(METHOD))
def test_options_of_the_method(name, value, error, message):
    with pytest.raises(error, match=f"^{name} {re.escape(message)}"):
        SpecEM([ONE], **{name: value})


@pytest.mark.parametrize(("name", "value", "error", "message"), rows(RUN))
def test_options_of_a_run(name, value, error, message):
    passes = []
    hook = ONE.model.register_forward_pre_hook(lambda *_: passes.append(1))
    with pytest.raises(error, match=f"^{name} {re.escape(message)}") as raised:
        SpecEM([ONE]).stream(PROMPT, **{"do_sample": name in SAMPLING, name: value})
    hook.remove()
    assert "\n" not in str(raised.value)
    assert not passes


def test_every_option_has_its_rows():
    method = set(inspect.signature(SpecEM).parameters) - {"members"}
    assert method == set(METHOD)
    assert {field.name for field in fields(GenerationOptions)} <= set(RUN)


def test_an_unknown_option_of_the_method():
    with pytest.raises(TypeError, match="beams"):
        SpecEM([ONE], beams=4)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_beams": 4}, "num_beams is not supported, got 4"),
        ({"num_return_sequences": 2, "do_sample": True}, "num_return_sequences is not .* got 2"),
        ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens is not supported, got 3"),
        ({"stop_strings": ["a", ""]}, "stop_strings must be texts that are not empty"),
        ({"top_p": 0.0, "do_sample": True}, "top_p must be above 0 and at most 1, got 0.0"),
    ],
)
def test_what_a_generation_config_asks_for_is_checked_as_well(config, message):
    with pytest.raises(ValueError, match=message):
        SpecEM([ONE]).generate(PROMPT, generation_config=GenerationConfig(**config))


@pytest.mark.parametrize("wrapped", [False, True])
def test_criteria_need_no_class(wrapped):
    asked = []

    def criterion(ids, scores):
        asked.append(ids.shape[1])
        return len(asked) == 3

    criteria = [criterion] if wrapped else criterion
    output = SpecEM([ONE]).generate(PROMPT, stopping_criteria=criteria)
    assert (len(output.token_ids[0]), output.finish_reason) == (3, "stop")
