"""Models that count positions, or turn them, in ways of their own: right or refused, never wrong
text without a word."""

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from ensemble_decoding import Member, SpecEM
from ensemble_decoding.architecture import frequency_switch
from tests.decoding.members_for_tests import PROMPT, member
from tests.decoding.test_architectures import CONFIGS, TOKENIZER
from tests.decoding.test_architectures import model as architecture
from tests.decoding.test_specem import assert_cache_is_a_fresh_prefill, own_greedy
from tests.decoding.tokenizers_for_tests import byte_level_tokenizer

SHORT, LONG = 64, 128
SHAPE = {
    "vocab_size": len(TOKENIZER) + 5,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": LONG,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 1,
}
BART = {
    **SHAPE,
    "d_model": 32,
    "decoder_attention_heads": 4,
    "decoder_layers": 3,
    "decoder_ffn_dim": 48,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [4.0] * 4,
    "original_max_position_embeddings": SHORT,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
PAD_COUNTED = ["Roberta", "Camembert", "XLMRoberta", "RobertaPreLayerNorm"]


def random(model_class, config, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = model_class(config)
        for parameter in made.parameters():
            if parameter.ndim > 1:
                parameter.data.normal_(0, 0.25)
    return made.eval()


def of(name, **changes):
    config = getattr(transformers, name + "Config")(**{**SHAPE, **changes})
    return random(AutoModelForCausalLM.from_config, config)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", PAD_COUNTED)
def test_models_that_count_positions_from_their_padding_id_are_refused(name, dtype):
    made = of(name, is_decoder=True).to(dtype)
    with pytest.raises(ValueError, match=f"^model cannot .*{name}ForCausalLM: .* not from 0 on$"):
        Member(made, TOKENIZER)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_counts_positions_from_its_cache_alone_is_refused(dtype):
    made = of("Bart", **BART).to(dtype)
    with pytest.raises(ValueError, match=r"BartForCausalLM: .*candidates from position_ids$"):
        Member(made, TOKENIZER)


def test_a_model_that_gives_logits_for_the_whole_prompt_is_refused():
    config = transformers.WhisperConfig(**{**BART, "decoder_start_token_id": 2})
    whisper = random(transformers.WhisperForCausalLM, config)
    with pytest.raises(ValueError, match=r"WhisperForCausalLM: .* 3 tokens with logits_to_keep=1"):
        Member(whisper, TOKENIZER)


def in_eight_bits(module, arguments):
    """What reaches a layer, with one scale for the whole pass, as dynamic quantisation has it."""
    scale = arguments[0].abs().max() / 127
    return ((arguments[0] / scale).round() * scale,)


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "int8"])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_check_is_no_obstacle_to_low_precision(name, kind):
    made = architecture(name)
    if kind == "int8":
        for module in made.float().modules():
            if isinstance(module, torch.nn.Linear):
                module.register_forward_pre_hook(in_eight_bits)
    else:
        made = made.to(getattr(torch, kind))
    assert Member(made, TOKENIZER).num_layers == 3


def test_a_model_in_training_mode_is_checked_without_its_dropout_and_left_in_it():
    made = architecture("GPT2").train()
    made.transformer.h[1].eval()
    before = [module.training for module in made.modules()]
    assert made.transformer.drop.p > 0
    Member(made, TOKENIZER)
    assert [module.training for module in made.modules()] == before


def rotary(name, parameters):
    changes = {"rope_parameters": dict(parameters), "num_key_value_heads": 2, "pad_token_id": 0}
    if parameters is LONGROPE and name == "Phi3":
        changes["original_max_position_embeddings"] = SHORT
    return Member(of(name, **changes).double(), byte_level_tokenizer(eos=False))


def finished(one, prompt):
    """A run of the model with itself, to the end that its context sets."""
    run = SpecEM([one, Member(one.model, one.tokenizer)]).stream(prompt, max_new_tokens=200)
    for _ in run:
        assert_cache_is_a_fresh_prefill(run.contexts[0], 1e-6)
    assert run.output.finish_reason == "length"
    return run


@pytest.mark.parametrize("name", ["Llama", "Phi3"])
def test_longrope_does_not_switch_within_a_run(name):
    one = rotary(name, LONGROPE)
    long_prompt = PROMPT * 9
    assert len(one.encode_prompt(PROMPT)) < SHORT < len(one.encode_prompt(long_prompt)) < LONG
    for prompt, limit in ((PROMPT, SHORT), (long_prompt, LONG)):
        run = finished(one, prompt)
        count = len(run.output.token_ids[0])
        assert limit - 10 < len(run.contexts[0].ids) <= limit
        assert run.output.token_ids == [own_greedy(one, prompt, count)] * 2


def test_the_switch_of_any_layer_counts():
    layers = {"full_attention": LONGROPE, "sliding_attention": {"rope_type": "default"}}
    config = transformers.Gemma3TextConfig(rope_parameters=layers, max_position_embeddings=LONG)
    assert frequency_switch(config) == SHORT
    assert frequency_switch(transformers.Gemma3TextConfig()) is None


def test_a_prompt_that_ends_at_the_switch_leaves_no_room():
    one = rotary("Llama", LONGROPE)
    one.tokenizer = lambda text: {"input_ids": [5] * SHORT}
    one.tokenizer.bos_token_id = None
    with pytest.raises(ValueError, match=f"{SHORT} tokens, got {SHORT}"):
        one.encode_prompt(PROMPT)


def test_dynamic_frequencies_stay_within_the_models_context():
    one = rotary("Llama", DYNAMIC)
    run = finished(one, PROMPT)
    assert len(run.contexts[0].ids) > LONG - 10
    expected = own_greedy(one, PROMPT, len(run.output.token_ids[0]))
    assert run.output.token_ids == [expected] * 2


def test_a_prompt_beyond_the_models_vocabulary_is_refused_by_name():
    ids = TOKENIZER(PROMPT)["input_ids"]
    small = Member(member(seed=1).model, TOKENIZER, name="small")
    assert small.encode_prompt(PROMPT) == ids
    made = of("Llama", vocab_size=max(ids), num_key_value_heads=2, pad_token_id=0)
    small = Member(made, TOKENIZER, name="small")
    with pytest.raises(ValueError, match=rf"^prompt .*'small' has.* {max(ids) - 1}, .*{max(ids)}$"):
        SpecEM([member(), small]).generate(PROMPT)
