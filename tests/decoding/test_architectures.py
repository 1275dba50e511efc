"""SpecEM on tiny random models of the architectures that transformers' attention interface serves
without code of ours, each against its own `generate`."""

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from ensemble_decoding import Member, SpecEM
from ensemble_decoding.attention_switch import NAME, segment_attention_active
from tests.decoding.members_for_tests import PROMPT
from tests.decoding.test_specem import assert_cache_is_a_fresh_prefill, own_greedy
from tests.decoding.tokenizers_for_tests import byte_level_tokenizer

TOKENIZER = byte_level_tokenizer()
WINDOW = 16
NO_SPECIALS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
ROTARY = {
    "vocab_size": len(TOKENIZER) + 5,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    **NO_SPECIALS,
}
GPT2 = {
    "vocab_size": len(TOKENIZER) + 5,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 512,
    **NO_SPECIALS,
}
OPT = {
    **{k: v for k, v in ROTARY.items() if k not in ("intermediate_size", "num_key_value_heads")},
    "ffn_dim": 48,
    "word_embed_proj_dim": 32,
    "pad_token_id": 1,
}
WINDOWED = {**ROTARY, "sliding_window": WINDOW}
CONFIGS = {
    "Qwen2": ROTARY,
    "Qwen2, windowed": {**WINDOWED, "use_sliding_window": True, "max_window_layers": 1},
    "Qwen3": {**ROTARY, "head_dim": 8},
    "Mistral": WINDOWED,
    "Phi3": ROTARY,
    "Olmo2": ROTARY,
    "Granite": ROTARY,
    "SmolLM3": {**ROTARY, "pad_token_id": 0},
    "Cohere2": WINDOWED,
    "Gemma2": {**WINDOWED, "head_dim": 8, "query_pre_attn_scalar": 8},
    "GPTNeoX": {k: v for k, v in ROTARY.items() if k != "num_key_value_heads"},
    "GPT2": GPT2,
    "GPTBigCode": GPT2,
    "OPT": OPT,
}
# transformers' SDPA knows no soft-cap. Its eager attention takes the softmax in float32 whatever
# comes in, which is what keys and values of later layers may then differ by.
EAGER = {"Gemma2": 1e-4}


def model(name, seed=0, attention=None):
    config_class = getattr(transformers, name.split(",")[0] + "Config")
    attention = attention or ("eager" if name in EAGER else "sdpa")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = AutoModelForCausalLM.from_config(
            config_class(**CONFIGS[name]), attn_implementation=attention
        )
        for parameter in made.parameters():
            if parameter.ndim > 1:
                parameter.data.normal_(0, 0.25)
    return made.double().eval()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_with_itself_gives_its_own_greedy_output(name):
    one = Member(model(name), TOKENIZER)
    prompt = PROMPT + "jumps over the lazy dog. The answer is 42, and the question was lost. "
    expected = own_greedy(one, prompt, 48)
    run = SpecEM([one, Member(one.model, TOKENIZER)], segment_length=7).stream(
        prompt, max_new_tokens=48
    )
    for _ in run:
        for context in run.contexts:
            assert_cache_is_a_fresh_prefill(context, EAGER.get(name, 1e-10))
    assert run.output.token_ids == [expected] * 2
    assert len(run.contexts[0].ids) > 2 * WINDOW


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["Qwen2", "GPT2", "Mistral"])
def test_models_are_switched_and_left_with_the_attention_they_had(name, attention):
    one = Member(model(name, attention=attention), TOKENIZER)
    run = SpecEM([one]).stream(PROMPT, max_new_tokens=20)
    next(run)
    assert one.model.config._attn_implementation == NAME
    run.close()
    assert one.model.config._attn_implementation == attention


def test_ordinary_calls_of_a_switched_model_with_a_soft_cap():
    gemma = model("Gemma2").float()  # in float64 eager itself gives NaN behind padding
    ids = torch.arange(1, 61).view(2, 30)
    padding = torch.ones_like(ids)
    padding[0, :5] = 0
    with torch.no_grad():
        expected = gemma(ids, attention_mask=padding).logits
        with segment_attention_active(gemma):
            got = gemma(ids, attention_mask=padding).logits
    seen = padding.bool()
    torch.testing.assert_close(got[seen], expected[seen], rtol=0, atol=1e-4)


def test_models_of_rotary_and_absolute_positions_decode_together():
    prompts = ["The quick brown fox jumps over the lazy dog. The answer", "The answer"]
    members = [Member(model(n, seed), TOKENIZER) for seed, n in enumerate(("Qwen3", "GPT2", "OPT"))]
    for prompt in prompts:
        run = SpecEM(members, segment_length=5).stream(prompt, max_new_tokens=40)
        for _ in run:
            for context in run.contexts:
                assert_cache_is_a_fresh_prefill(context)


def test_absolute_positions_end_with_the_models_context():
    one = Member(model("GPT2"), TOKENIZER)
    output = SpecEM([one]).generate("the " * 230, max_new_tokens=400)
    assert output.finish_reason in ("length", "stop")
    assert output.usage[0].prompt_tokens + len(output.token_ids[0]) <= 512
