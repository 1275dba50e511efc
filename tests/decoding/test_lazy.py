"""Members that are loaded at first use and let go on request."""

import gc
import weakref

import pytest

from ensemble_decoding import Member, SpecEM
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
    assert not lazy.loaded
    output = method.generate(PROMPT, max_new_tokens=10)
    assert output.token_ids == expected.token_ids
    assert output.rounds.members == ["late"]
    weights = sum(p.nbytes for p in lazy.model.parameters())
    buffers = sum(b.nbytes for b in lazy.model.buffers())
    assert output.usage[0].model_bytes == lazy.memory_bytes == weights + buffers
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
