"""Members: what they refuse, how they read prompts, and what the loop sees of them."""

import copy

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForMaskedLM,
    BloomConfig,
    BloomForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    Lfm2Config,
    MambaConfig,
    MambaForCausalLM,
    StableLmConfig,
    StableLmForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from ensemble_decoding import DecodingError, Member, SpecEM
from tests.decoding.members_for_tests import PROMPT, member, three_families
from tests.decoding.models_for_tests import tiny_llama
from tests.decoding.tokenizers_for_tests import byte_level_tokenizer, sentencepiece_tokenizer

TEMPLATE = (
    "{{ bos_token if bos_token else '' }}{% for m in messages %}[{{ m.role }}]{{ m.content }}\n"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "The answer is 42?"},
]


def with_template(tokenizer):
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def test_a_prompt_is_encoded_with_the_tokenizers_defaults():
    for tokenizer in (byte_level_tokenizer(), sentencepiece_tokenizer()):
        one = member(tokenizer=tokenizer)
        assert one.encode_prompt(PROMPT) == tokenizer(PROMPT)["input_ids"]


def test_messages_are_rendered_with_each_members_own_template():
    plain = sentencepiece_tokenizer()
    one = member(tokenizer=with_template(plain))
    rendered = "<s>[system]Be brief.\n[user]The answer is 42?\n[assistant]"
    expected = plain(rendered, add_special_tokens=False)["input_ids"]
    assert one.encode_prompt(messages=MESSAGES) == expected
    assert expected.count(plain.bos_token_id) == 1


def test_messages_that_a_template_refuses():
    tokenizer = with_template(sentencepiece_tokenizer())
    tokenizer.chat_template = "{{ raise_exception('System role not supported') }}"
    with pytest.raises(ValueError, match=r"'llama-0': System role not supported"):
        member(tokenizer=tokenizer).encode_prompt(messages=MESSAGES)


def test_messages_without_a_template_are_the_contents_joined_by_a_blank_line():
    tokenizer = sentencepiece_tokenizer()
    expected = tokenizer("Be brief.\n\nThe answer is 42?")["input_ids"]
    assert member(tokenizer=tokenizer).encode_prompt(messages=MESSAGES) == expected


def test_a_prompt_that_spells_the_beginning_of_text_gets_no_second_one():
    one = member(tokenizer=sentencepiece_tokenizer())
    ids = one.encode_prompt("<s>" + PROMPT)
    assert ids.count(one.tokenizer.bos_token_id) == 1


def test_an_empty_prompt_needs_a_beginning_of_text():
    one = member(tokenizer=sentencepiece_tokenizer())
    assert one.encode_prompt("") == [one.tokenizer.bos_token_id]
    with pytest.raises(ValueError, match=r"prompt must not be empty for member 'llama-0'"):
        member(tokenizer=byte_level_tokenizer()).encode_prompt("")


def test_a_prompt_longer_than_a_members_context_is_refused():
    short = Member(tiny_llama(600), byte_level_tokenizer(), name="short")
    short.context_length = 20
    with pytest.raises(ValueError, match=r"context of member 'short', 20 tokens, got \d+"):
        SpecEM([member(), short]).generate(PROMPT * 5)


def test_a_run_ends_where_a_members_context_is_full():
    one, other = member(seed=1), member(seed=2)
    other.context_length = len(other.encode_prompt(PROMPT)) + 25
    run = SpecEM([one, other], segment_length=4).stream(PROMPT, max_new_tokens=200)
    assert list(run)
    assert run.output.finish_reason in ("length", "stop")
    assert all(len(context.ids) <= other.context_length for context in run.contexts)


def test_models_whose_attention_is_not_ours_to_choose_are_refused():
    tokenizer = byte_level_tokenizer()
    shape = {"vocab_size": 600, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    sinks = GptOssConfig(
        **shape, intermediate_size=32, num_key_value_heads=2, head_dim=8, num_local_experts=2
    )
    with pytest.raises(ValueError, match=r"GptOssForCausalLM: .* the argument 's_aux'"):
        Member(GptOssForCausalLM(sinks).float(), tokenizer)
    own = BloomConfig(vocab_size=600, hidden_size=32, n_layer=2, n_head=4)
    with pytest.raises(ValueError, match=r"all its 2 layers .* BloomForCausalLM does in 0"):
        Member(BloomForCausalLM(own), tokenizer)
    partly = StableLmConfig(**shape, intermediate_size=32, num_key_value_heads=4)
    with pytest.raises(ValueError, match="StableLmForCausalLM"):
        Member(StableLmForCausalLM(partly), tokenizer)


MAMBA = MambaConfig(vocab_size=600, hidden_size=16, num_hidden_layers=1, state_size=4)
LFM2 = Lfm2Config(
    vocab_size=600,
    hidden_size=32,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    layer_types=["conv", "full_attention"],
)
T5 = T5Config(vocab_size=600, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
BERT = BertConfig(
    vocab_size=600,
    hidden_size=16,
    intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: MambaForCausalLM(MAMBA), "rolled back; MambaForCausalLM has linear_attention"),
        (lambda: AutoModelForCausalLM.from_config(LFM2), "cannot be rolled back.* has conv"),
        (lambda: T5ForConditionalGeneration(T5), "T5ForConditionalGeneration has an encoder"),
        (lambda: BertForMaskedLM(BERT), "a causal language model, got BertForMaskedLM"),
    ],
)
def test_models_that_cannot_be_rolled_back_are_refused_by_name(model, message):
    with pytest.raises(ValueError, match=message):
        Member(model(), byte_level_tokenizer())


def test_what_is_no_model_or_no_tokenizer_is_refused():
    with pytest.raises(TypeError, match="model must be a transformers PreTrainedModel, got str"):
        Member("gpt2", byte_level_tokenizer())
    with pytest.raises(TypeError, match=r"tokenizer must be .* tokenizer, got Tokenizer"):
        Member(tiny_llama(600), byte_level_tokenizer().backend_tokenizer)


def test_the_generation_configs_ends_of_text_count_before_the_tokenizers():
    tokenizer, model = byte_level_tokenizer(), tiny_llama(600)
    assert Member(model, tokenizer).end_of_text_ids == (tokenizer.eos_token_id,)
    model.generation_config.eos_token_id = [7, 9]
    assert Member(model, tokenizer).end_of_text_ids == (7, 9)
    plain = byte_level_tokenizer(eos=False)
    assert Member(tiny_llama(600), plain).end_of_text_ids == ()


def test_ids_behind_the_tokenizer_and_specials_are_never_drafted():
    one = member()
    favourites = [*range(len(one.table), one.model.config.vocab_size), *one.table.suppressed_ids()]
    head = one.model.get_output_embeddings()
    head.weight.data[favourites] *= 40
    output = SpecEM([one]).generate(PROMPT, max_new_tokens=60)
    assert not set(output.token_ids[0]) & set(favourites)
    raw = one.model.generate(
        torch.tensor([one.encode_prompt(PROMPT)]), max_new_tokens=60, do_sample=False
    )
    assert set(raw[0].tolist()) & set(favourites)


@pytest.mark.parametrize("value", [float("nan"), -float("inf")])
def test_logits_without_a_distribution_name_the_member_and_the_position(value):
    members = three_families()
    prompt_length = len(members[1].encode_prompt(PROMPT))
    calls = []

    def spoil(module, arguments, output):
        calls.append(output.logits.shape)
        if len(calls) == 20:
            output.logits[..., :] = value
        return output

    members[1].model.register_forward_hook(spoil)
    with pytest.raises(DecodingError, match=r"'gemma3-15' gave .* after position \d+") as error:
        SpecEM(members, segment_length=4).generate(PROMPT, max_new_tokens=500)
    output = error.value.output
    assert output.finish_reason == "error"
    assert len(output.rounds) > 1
    position = int(str(error.value).rsplit(" ", 1)[1])
    assert position >= prompt_length + len(output.token_ids[1]) - 1
    text = b"".join(r.data for r in output.rounds).decode("utf-8", "replace")
    assert text.startswith(output.text)


def test_a_nan_in_one_column_is_never_token_zero():
    one = member()

    def spoil(module, arguments, output):
        output.logits[..., 17] = float("nan")
        return output

    one.model.register_forward_hook(spoil)
    with pytest.raises(DecodingError, match="member 'llama-0' gave logits with NaN"):
        SpecEM([one]).generate(PROMPT, max_new_tokens=5)
