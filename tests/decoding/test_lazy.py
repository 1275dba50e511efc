"""Members that are loaded at first use and let go on request."""

import gc
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from ensemble_decoding import Member, SpecEM
from ensemble_decoding.attention_switch import segment_attention_active
from ensemble_decoding.lazy import LazyMember
from tests.decoding.members_for_tests import PROMPT, member


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    one = member()
    one.model.save_pretrained(folder)
    one.tokenizer.save_pretrained(folder)
    return folder


def test_a_lazy_member_loads_at_first_use_and_lets_go(folder):
    lazy = Member.from_pretrained(folder, lazy=True, name="late")
    assert isinstance(lazy, Member)
    assert (lazy.name, lazy.loaded, lazy.memory_bytes) == ("late", False, 0)
    expected = SpecEM([Member.from_pretrained(folder)]).generate(PROMPT, max_new_tokens=10)
    method = SpecEM([lazy])
    assert repr(lazy) == "<LazyMember 'late', not loaded>"
    assert not lazy.loaded
    output = method.generate(PROMPT, max_new_tokens=10)
    assert output.token_ids == expected.token_ids
    assert output.rounds.members == ["late"]
    weights = sum(p.nbytes for p in lazy.model.parameters())
    buffers = sum(b.nbytes for b in lazy.model.buffers())
    assert output.usage[0].model_bytes == lazy.memory_bytes == weights + buffers
    assert repr(lazy) == "<Member 'late': LlamaForCausalLM, torch.float64, cpu>"
    model = weakref.ref(lazy.model)
    lazy.release()
    gc.collect()
    assert model() is None
    assert (lazy.loaded, lazy.memory_bytes) == (False, 0)
    assert method.generate(PROMPT, max_new_tokens=10).token_ids == expected.token_ids


def test_a_lazy_member_that_cannot_be_loaded_says_so_at_first_use(tmp_path):
    lazy = Member.from_pretrained(tmp_path / "nowhere", lazy=True)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"no model could be loaded from .*nowhere"):
            SpecEM([lazy]).generate(PROMPT)
    assert not lazy.loaded
    with pytest.raises(AttributeError):
        lazy.__deepcopy__  # noqa: B018


def test_options_go_through_to_transformers(folder, monkeypatch):
    seen = {}
    original = Member.from_pretrained(folder).model.__class__.from_pretrained

    def record(path, **options):
        seen.update(options)
        options.pop("quantization_config")
        return original(path, **options)

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", record)
    lazy = Member.from_pretrained(folder, lazy=True, quantization_config="four bits")
    assert lazy.model is not None
    assert seen["quantization_config"] == "four bits"


def test_a_run_keeps_what_it_began_with_when_its_member_is_released(folder):
    lazy = Member.from_pretrained(folder, lazy=True)
    for options in ({}, {"eos_token_id": 5}):
        expected = SpecEM([lazy]).generate(PROMPT, max_new_tokens=40, **options)
        model = weakref.ref(lazy.model)
        run = SpecEM([lazy]).stream(PROMPT, max_new_tokens=40, **options)
        next(run)
        lazy.release()
        assert list(run)
        assert not lazy.loaded
        assert run.output.token_ids == expected.token_ids
        assert run.output.usage[0].model_bytes == expected.usage[0].model_bytes > 0
        assert model().config._attn_implementation == "sdpa"
        del run
        gc.collect()
        assert model() is None


def test_a_context_of_its_own_keeps_what_it_began_with(folder):
    lazy = Member.from_pretrained(folder, lazy=True)
    context = lazy.new_context()
    lazy.release()
    with segment_attention_active(context.member.model):
        context.prefill(context.member.encode_prompt(PROMPT))
        assert context.draft(5).ids
    assert not lazy.loaded


def test_threads_that_share_an_unloaded_member_load_it_once(folder):
    expected = SpecEM([Member.from_pretrained(folder)]).generate(PROMPT, max_new_tokens=30)
    loads = []

    def load():
        loads.append(1)
        time.sleep(0.2)  # long enough for the other threads to ask as well
        return Member.from_pretrained(folder)

    lazy = LazyMember(load, "late")
    with ThreadPoolExecutor(4) as pool:
        outputs = pool.map(lambda _: SpecEM([lazy]).generate(PROMPT, max_new_tokens=30), range(4))
        assert [output.token_ids for output in outputs] == [expected.token_ids] * 4
    assert len(loads) == 1


def test_what_is_set_on_a_lazy_member_counts_in_its_runs(folder):
    lazy = Member.from_pretrained(folder, lazy=True)
    lazy.context_length = len(lazy.encode_prompt(PROMPT)) + 3
    output = SpecEM([lazy], segment_length=1).generate(PROMPT, max_new_tokens=40)
    assert (output.finish_reason, len(output.token_ids[0])) == ("length", 3)
