"""What options mean: those that say nothing, those of a generation config, extreme ones."""

import sys

import pytest
import torch
from transformers import GenerationConfig

from ensemble_decoding import SpecEM, Trace
from ensemble_decoding.options import GenerationOptions
from tests.decoding.members_for_tests import PROMPT, member

ONE = member(seed=1)
GREEDY = SpecEM([ONE]).generate(PROMPT, max_new_tokens=12).token_ids
SAMPLING = ("temperature", "top_k", "top_p", "min_p")


def test_what_asks_for_nothing_is_taken():
    nothing = dict.fromkeys(("do_sample", "seed", "streamer", "eos_token_id", *SAMPLING))
    nothing |= {"num_beams": 1, "num_return_sequences": 1, "assistant_model": None}
    nothing |= {"stop_strings": None, "stopping_criteria": [], "repetition_penalty": 1}
    output = SpecEM([ONE]).generate(PROMPT, max_new_tokens=12, **nothing)
    assert output.token_ids == GREEDY


def test_none_is_as_if_not_given():
    config = GenerationConfig(max_new_tokens=3, do_sample=True)
    resolved = GenerationOptions.resolve({"max_new_tokens": None, "do_sample": None}, config)
    assert (resolved.max_new_tokens, resolved.do_sample) == (3, True)
    assert GenerationOptions.resolve({"max_new_tokens": None}).max_new_tokens == 256
    with pytest.raises(TypeError, match="sample is no option"):
        GenerationOptions.resolve({"sample": None})


@pytest.mark.parametrize(
    "option",
    [
        {"temperature": 0.0},
        {"temperature": float("inf")},
        {"top_k": -1},
        {"top_p": 0},
        {"min_p": 2},
        {"temperature": 0.7, "top_p": 0.9, "top_k": 3},
    ],
    ids=repr,
)
def test_without_sampling_its_options_are_not_looked_at(option, tmp_path):
    output = SpecEM([ONE]).generate(PROMPT, max_new_tokens=12, **option)
    assert output.token_ids == GREEDY
    assert not set(output.rounds.options) & set(SAMPLING)
    output.rounds.save(tmp_path / "trace.json")
    assert Trace.load(tmp_path / "trace.json") == output.rounds


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-45, 1e-38, 1e-30, 1e-20, 1e-10])
def test_a_tiny_temperature_is_greedy(temperature):
    options = {"do_sample": True, "temperature": temperature, "seed": 1, "max_new_tokens": 12}
    assert SpecEM([ONE]).generate(PROMPT, **options).token_ids == GREEDY
    options |= {"top_k": 9, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.0}
    assert SpecEM([ONE]).generate(PROMPT, **options).token_ids == GREEDY


@pytest.mark.parametrize("temperature", [1e10, 1e20, 1e30, 1e39, 1e300, sys.float_info.max])
def test_a_huge_temperature_chooses_all_alike(temperature):
    options = {"do_sample": True, "temperature": temperature, "seed": 1}
    chooser = GenerationOptions.resolve(options).chooser()
    row = torch.tensor([3.0, -torch.inf, 1.0, 2e4, -5.0, -torch.inf])
    chosen = [chooser.choose(row, [0], position) for position in range(400)]
    assert {token for token in chosen if chosen.count(token) > 60} == {0, 2, 3, 4}
    assert set(chosen) == {0, 2, 3, 4}
    output = SpecEM([ONE, member(seed=2)]).generate(PROMPT, max_new_tokens=12, **options)
    assert output.finish_reason in ("stop", "length")


@pytest.mark.parametrize(
    ("option", "noted"),
    [
        (7, 7),
        ((7, 9), [7, 9]),
        (range(7, 9), [7, 8]),
        ([(7,)], [[7]]),
        ([range(7, 9)], [[7, 8]]),
        ((), []),
    ],
)
def test_the_trace_notes_end_of_text_ids_as_lists(tmp_path, option, noted):
    output = SpecEM([ONE]).generate(PROMPT, max_new_tokens=6, eos_token_id=option)
    assert output.rounds.options["eos_token_id"] == noted
    output.rounds.save(tmp_path / "trace.json")
    assert Trace.load(tmp_path / "trace.json") == output.rounds


@pytest.mark.parametrize("listed", [False, True])
def test_end_of_text_ids_of_a_generation_config(listed):
    token = GREEDY[0][3]
    config = GenerationConfig(eos_token_id=[token] if listed else token)
    output = SpecEM([ONE]).generate(PROMPT, max_new_tokens=12, generation_config=config)
    end = GREEDY[0].index(token) + 1
    assert (output.token_ids[0], output.finish_reason) == (GREEDY[0][:end], "stop")
    output = SpecEM([ONE]).generate(
        PROMPT, max_new_tokens=12, generation_config=config, eos_token_id=ONE.end_of_text_ids[0]
    )
    assert output.token_ids == GREEDY


@pytest.mark.parametrize(
    ("name", "value", "came"),
    [
        ("max_length", 12, "12"),
        ("min_length", 3, "3"),
        ("min_new_tokens", 5, "5"),
        ("max_time", 0.5, "0.5"),
        ("bad_words_ids", [[4]], "list"),
        ("suppress_tokens", [4], "list"),
        ("begin_suppress_tokens", [4], "list"),
        ("no_repeat_ngram_size", 2, "2"),
        ("encoder_repetition_penalty", 1.2, "1.2"),
        ("typical_p", 0.5, "0.5"),
        ("epsilon_cutoff", 0.1, "0.1"),
        ("eta_cutoff", 0.1, "0.1"),
        ("forced_eos_token_id", 0, "0"),
        ("sequence_bias", [[[4], 2.0]], "list"),
        ("guidance_scale", 1.5, "1.5"),
        ("penalty_alpha", 0.6, "0.6"),
        ("remove_invalid_values", True, "True"),
        ("num_beams", 4, "4"),
        ("num_return_sequences", 2, "2"),
    ],
)
def test_what_a_run_does_not_do_is_refused_in_a_config_as_well(name, value, came):
    config = GenerationConfig()
    setattr(config, name, value)
    with pytest.raises(ValueError, match=f"^{name} is not supported, got {came}: "):
        SpecEM([ONE]).stream(PROMPT, generation_config=config)


def test_what_a_config_says_of_other_things_is_left_aside():
    config = GenerationConfig(
        max_new_tokens=12,
        pad_token_id=3,
        bos_token_id=1,
        use_cache=True,
        output_scores=True,
        num_beams=1,
        length_penalty=1.0,
        typical_p=1.0,
        no_repeat_ngram_size=0,
        min_length=0,
        bad_words_ids=None,
        suppress_tokens=[],
        remove_invalid_values=False,
        chat_format="chatml",
    )
    config.transformers_version = "4.1.0"
    output = SpecEM([ONE]).generate(PROMPT, generation_config=config)
    assert output.token_ids == GREEDY
    assert SpecEM([ONE]).generate(
        PROMPT, max_new_tokens=12, generation_config=ONE.model.generation_config
    )
