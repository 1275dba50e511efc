"""Folders that are damaged: one sentence says so."""

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file

from ensemble_decoding import Member
from ensemble_decoding.cli import main
from tests.decoding.members_for_tests import PROMPT, member, saved


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    return saved([member(seed=3)], tmp_path_factory.mktemp("models"))[0]


@pytest.fixture
def folder(intact, tmp_path):
    return shutil.copytree(intact, tmp_path / "damaged")


def configured(**changes):
    def damage(folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))

    return damage


def written(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def cut(folder):
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])


def without_a_layer(folder):
    weights = load_file(folder / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if ".1.mlp." not in name}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


DAMAGES = {
    "weights that are none": (written("model.safetensors", b"garbage" * 4), "SafetensorError: .*"),
    "no bytes": (written("model.safetensors", b""), "SafetensorError: .*"),
    "half of the weights": (cut, "SafetensorError: .*"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), ".* model.safetensors.*"),
    "a layer's weights": (without_a_layer, r"3 weights are missing, the first is .*\.1\.mlp\..*"),
    "other shapes": (configured(hidden_size=64), r"\d+ weights have another shape .* of \[.*64\]"),
    "a text for a number": (configured(hidden_size="x"), ".*hidden_size.*"),
    "no heads": (configured(num_attention_heads=0), "ZeroDivisionError: .*"),
    "a list for a config": (written("config.json", b"[]"), "TypeError: .*"),
    "a config that is none": (written("config.json", b"{bad"), ".*config.json.*"),
    "an empty tokenizer": (written("tokenizer.json", b"{}"), "KeyError: 'added_tokens'"),
    "a tokenizer that is none": (written("tokenizer.json", b"{bad"), ".*"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_folder_is_refused_in_one_sentence(name, folder, intact, capsys):
    damage, reason = DAMAGES[name]
    damage(folder)
    with pytest.raises(ValueError, match=f"^no model could be loaded from '{folder}': {reason}$"):
        Member.from_pretrained(folder)
    capsys.readouterr()
    models = ["--model", intact, "--model", str(folder)]
    assert main(["specem", *models, "--prompt", PROMPT]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"ensemble-decode: no model could be loaded from '{folder}': ")
    assert err.count("\n") == 1


def test_other_shapes_may_be_asked_for(folder):
    configured(intermediate_size=96)(folder)
    one = Member.from_pretrained(folder, ignore_mismatched_sizes=True)
    assert one.model.config.intermediate_size == 96


@pytest.mark.parametrize("error", [MemoryError("full"), ModuleNotFoundError("no fast kernels")])
def test_what_says_nothing_about_the_folder_is_passed_on(folder, monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", fail)
    with pytest.raises(type(error), match=str(error)):
        Member.from_pretrained(folder)
