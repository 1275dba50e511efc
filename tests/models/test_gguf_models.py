"""GGUF files become ordinary dense models, with the tokenizer that the file asks for."""

import importlib.metadata
import warnings

import pytest
import torch
from packaging.version import Version
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from ensemble_decoding import gguf_models
from ensemble_decoding.gguf_models import convert_gguf, load_gguf

from .tiny_gguf import write_tiny_gguf


@pytest.fixture(autouse=True)
def _any_transformers(monkeypatch):
    # The oldest supported transformers reads these files too; only Gemma's tokenizer it gets wrong.
    monkeypatch.setattr(gguf_models, "_OLDEST_TRANSFORMERS", Version("5.0"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return path, write_tiny_gguf(path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_weights_are_dense_and_in_the_asked_dtype(tiny, dtype):
    path, up_projection = tiny
    model, _ = load_gguf(path.parent, path.name, dtype=dtype)
    projections = [module for name, module in model.named_modules() if name.endswith("_proj")]
    assert len(projections) == 14
    assert all(type(module) is torch.nn.Linear for module in projections)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    loaded = model.model.layers[0].mlp.up_proj.weight
    assert torch.equal(loaded, torch.from_numpy(up_projection).to(dtype))


def test_the_converted_folder_reloads_with_the_same_bits(tiny, tmp_path):
    path, _ = tiny
    model, tokenizer = load_gguf(path.parent, path.name, dtype=torch.bfloat16)
    convert_gguf(path, tmp_path, dtype=torch.bfloat16)
    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    weights = reloaded.state_dict()
    assert weights.keys() == model.state_dict().keys()
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    same = AutoTokenizer.from_pretrained(tmp_path)
    assert same.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    assert (tmp_path / "model.safetensors").stat().st_mode == (
        tmp_path / "config.json"
    ).stat().st_mode


def test_smollm_splits_digits_and_others_do_not(tiny, tmp_path):
    path, _ = tiny
    _, tokenizer = load_gguf(path.parent, path.name, dtype=torch.float32)
    assert tokenizer.tokenize(" cat 2024") == ["Ġc", "at", "Ġ", "2", "0", "2", "4"]
    write_tiny_gguf(tmp_path / "other.gguf", pre="gpt-2")
    _, tokenizer = load_gguf(tmp_path, "other.gguf", dtype=torch.float32)
    assert tokenizer.tokenize("2024") == ["2024"]


@pytest.mark.real_models
def test_smollm2_splits_2024_into_its_digits(real_models):
    tokenizer = AutoTokenizer.from_pretrained(real_models["smollm2"])
    assert tokenizer.tokenize("2024") == ["2", "0", "2", "4"]


@pytest.mark.real_models
def test_gemma_adds_one_bos_and_finds_whole_words(real_models):
    tokenizer = AutoTokenizer.from_pretrained(real_models["gemma3"])
    ids = tokenizer("The capital of France")["input_ids"]
    words = ["<bos>", "The", "▁capital", "▁of", "▁France"]
    assert tokenizer.convert_ids_to_tokens(ids) == words


def test_nothing_is_printed_and_settings_come_back(tiny, capfd):
    path, _ = tiny
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.enable_progress_bar()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load_gguf(path.parent, path.name, dtype=torch.bfloat16)
    assert not caught
    assert capfd.readouterr() == ("", "")
    assert transformers_logging.get_verbosity() == verbosity
    assert transformers_logging.is_progress_bar_enabled()


@pytest.mark.parametrize("kept", [0.0, 0.001, 0.02, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_one_value_error(tiny, tmp_path, kept):
    data = tiny[0].read_bytes()
    (tmp_path / "cut.gguf").write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(ValueError, match=r"the GGUF file .*/cut\.gguf: it is broken") as caught:
        load_gguf(tmp_path, "cut.gguf", dtype=torch.float32)
    assert "\n" not in str(caught.value)


def test_an_unsupported_architecture_is_named(tmp_path):
    write_tiny_gguf(tmp_path / "new.gguf", architecture="abacus")
    with pytest.raises(ValueError, match=r"/new\.gguf: .*not supported.*abacus"):
        load_gguf(tmp_path, "new.gguf", dtype=torch.float32)


def test_a_missing_file_is_named(tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(ValueError, match=rf"the GGUF file {folder}/x\.gguf does not exist"):
            load_gguf(folder, "x.gguf", dtype=torch.float32)


def test_the_folder_counts_not_the_working_directory(tiny, tmp_path, monkeypatch):
    (tmp_path / tiny[0].name).write_bytes(b"another file of the same name")
    monkeypatch.chdir(tmp_path)
    model, _ = load_gguf(tiny[0].parent, tiny[0].name, dtype=torch.float32)
    assert model.config.num_hidden_layers == 2


@pytest.mark.parametrize("package", ["gguf", "accelerate"])
def test_a_missing_package_is_named(tiny, monkeypatch, package):
    version = importlib.metadata.version

    def version_or_missing(name):
        if name == package:
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", version_or_missing)
    with pytest.raises(ImportError, match=f"need the package {package}: pip install") as caught:
        load_gguf(tiny[0].parent, tiny[0].name, dtype=torch.float32)
    assert caught.value.name == package


def test_a_transformers_that_gets_tokenizers_wrong_is_refused(tiny, monkeypatch):
    monkeypatch.setattr(gguf_models, "_OLDEST_TRANSFORMERS", Version("5.23"))
    # The module as it is seen there: transformers puts another one in its place while it loads.
    monkeypatch.setattr(gguf_models.transformers, "__version__", "5.22.1")
    with pytest.raises(RuntimeError, match=r"need transformers 5\.23 or later, 5\.22\.1"):
        load_gguf(tiny[0].parent, tiny[0].name, dtype=torch.float32)
