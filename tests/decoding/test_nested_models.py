"""Models of several parts: a vision tower beside the language model, which alone decodes here."""

import pytest
import torch
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
)

from ensemble_decoding import DecodingError, Member, SpecEM
from ensemble_decoding.attention_switch import NAME, segment_attention_active
from tests.decoding.members_for_tests import PROMPT, member
from tests.decoding.test_architectures import ROTARY as TEXT
from tests.decoding.test_specem import assert_cache_is_a_fresh_prefill, own_greedy
from tests.decoding.tokenizers_for_tests import byte_level_tokenizer, sentencepiece_tokenizer

TOKENIZER = byte_level_tokenizer()
WINDOW = 16
# An id behind those of the tokenizer, so that no text holds an image.
IMAGE = len(TOKENIZER)
VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


def gemma3():
    windowed = {
        "head_dim": 8,
        "query_pre_attn_scalar": 8,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    }
    config = Gemma3Config(
        text_config={**TEXT, **windowed},
        vision_config=VISION,
        mm_tokens_per_image=4,
        image_token_index=IMAGE,
        # Tied, a random model repeats its last token.
        tie_word_embeddings=False,
    )
    return Gemma3ForConditionalGeneration(config)


def llava():
    vision = {"model_type": "clip_vision_model", "projection_dim": 16, **VISION}
    config = LlavaConfig(
        text_config={"model_type": "llama", **TEXT},
        vision_config=vision,
        image_token_index=IMAGE,
    )
    return LlavaForConditionalGeneration(config)


def qwen():
    # Positions of three axes, by which it turns parts of one head.
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_heads": 2,
        "out_hidden_size": 32,
        "fullatt_block_indexes": [0],
    }
    config = Qwen2_5_VLConfig(
        text_config={**TEXT, "rope_parameters": rope},
        vision_config=vision,
        image_token_id=IMAGE,
        video_token_id=IMAGE + 1,
        vision_start_token_id=IMAGE + 2,
        vision_end_token_id=IMAGE + 3,
    )
    return Qwen2_5_VLForConditionalGeneration(config)


MODELS = {"Gemma 3": gemma3, "Llava": llava, "Qwen 2.5 VL": qwen}
PARTS = [
    {"": "sdpa", "text_config": "eager", "vision_config": "sdpa"},
    {"": "eager", "text_config": "sdpa", "vision_config": "eager"},
    {"": "sdpa", "text_config": "sdpa", "vision_config": "sdpa"},
]


def paligemma():
    text = {"model_type": "gemma", "head_dim": 8, **TEXT}
    vision = {"model_type": "siglip_vision_model", "projection_dim": 32, **VISION}
    config = PaliGemmaConfig(
        text_config=text, vision_config=vision, image_token_index=IMAGE, projection_dim=32
    )
    return PaliGemmaForConditionalGeneration(config)


def model(name, seed=0, parts=PARTS[0]):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = MODELS[name]()
        for parameter in made.parameters():
            if parameter.ndim > 1:
                parameter.data.normal_(0, 0.25)
    made.set_attn_implementation(parts)
    made.generation_config.eos_token_id = None
    return made.double().eval()


def implementations(made):
    """What each module that has a config of its own reads before it attends."""
    configs = {
        name: getattr(module, "config", None) for name, module in made.named_modules(prefix="all")
    }
    return {
        name: config._attn_implementation
        for name, config in configs.items()
        if hasattr(config, "_attn_implementation")
    }


@pytest.mark.parametrize("name", MODELS)
def test_a_model_with_itself_gives_its_own_greedy_output(name):
    one = Member(model(name), TOKENIZER)
    prompt = PROMPT + "jumps over the lazy dog. The answer is 42. "
    expected = own_greedy(one, prompt, 40)
    assert len(set(expected)) > 5
    run = SpecEM([one, Member(one.model, TOKENIZER)], segment_length=7).stream(
        prompt, max_new_tokens=40
    )
    for _ in run:
        for context in run.contexts:
            # Eager attention takes the softmax in float32.
            assert_cache_is_a_fresh_prefill(context, 1e-4)
    assert run.output.token_ids == [expected] * 2
    assert len(run.contexts[0].ids) > 2 * WINDOW


@pytest.mark.parametrize("parts", PARTS, ids=lambda parts: "-".join(parts.values()))
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("end", ["finished", "closed", "failed"])
def test_each_part_is_left_with_the_attention_it_had(name, parts, end, monkeypatch):
    one = model(name, parts=parts)
    before = implementations(one)
    assert before["all.model.language_model"] == parts["text_config"]
    assert parts["vision_config"] in before.values()
    both = [Member(one, TOKENIZER), member(seed=4)]
    assert implementations(one) == before
    run = SpecEM(both, segment_length=4).stream(PROMPT, max_new_tokens=12)
    next(run)
    assert implementations(one)["all.model.language_model"] == NAME
    if end == "closed":
        run.close()
    elif end == "failed":
        one.register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(DecodingError, match="division by zero"):
            next(run)
    else:
        list(run)
    assert implementations(one) == before


@pytest.mark.parametrize("name", ["Gemma 3", "Llava"])
def test_an_image_is_seen_as_before_while_a_run_is_going_on(name):
    one = model(name, parts=PARTS[2])
    tokens = 4
    ids = torch.tensor([[7, *[IMAGE] * tokens, 9, 30, 41]])
    image = torch.linspace(-1, 1, 3 * 28 * 28, dtype=torch.float64).view(1, 3, 28, 28)
    kinds = {"token_type_ids": (ids == IMAGE).long()} if name == "Gemma 3" else {}
    with torch.no_grad():
        expected = one(input_ids=ids, pixel_values=image, **kinds).logits
        other = one(input_ids=ids, pixel_values=-image, **kinds).logits
        with segment_attention_active(one):
            got = one(input_ids=ids, pixel_values=image, **kinds).logits
    assert (other - expected).abs().max() > 1e-3
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def test_positions_of_an_earlier_image_are_not_carried_over():
    one = Member(model("Qwen 2.5 VL"), TOKENIZER)
    method = SpecEM([one], segment_length=5)
    expected = method.generate(PROMPT, max_new_tokens=20)
    one.model.model.rope_deltas = torch.tensor([[-7]])
    assert method.generate(PROMPT, max_new_tokens=20).token_ids == expected.token_ids


def test_models_of_several_parts_decode_with_others():
    members = [
        Member(model("Gemma 3", 1), TOKENIZER, name="gemma"),
        member("gemma3", sentencepiece_tokenizer(), seed=2),
        Member(model("Qwen 2.5 VL", 3), TOKENIZER, name="qwen"),
    ]
    run = SpecEM(members, segment_length=5).stream(PROMPT, max_new_tokens=30)
    text = "".join(piece.text for piece in run)
    assert run.output.text == text != ""
    for context in run.contexts:
        assert_cache_is_a_fresh_prefill(context, 1e-4)


def test_a_prompt_that_is_read_in_both_directions_is_refused():
    one = paligemma()
    before = implementations(one)
    with pytest.raises(ValueError, match=r"^model cannot decode .*GemmaAttention .*not causal$"):
        Member(one, TOKENIZER)
    assert implementations(one) == before
