"""Each flag of the command line: what it does is what the option of its name does in Python, and a
bad value is one line."""

import json
import re

import pytest
import torch

from ensemble_decoding import Member, SpecEM
from ensemble_decoding.cli import main
from ensemble_decoding.typed_json import to_json
from tests.decoding.members_for_tests import PROMPT, saved, three_families

SAMPLED = ["--do-sample", "--seed", "7"]
SEEDED = {"do_sample": True, "seed": 7}
# Flags, the options of SpecEM and those of the run that they stand for.
FLAGS = [
    ([], {}, {}),
    (["--segment-length", "3"], {"segment_length": 3}, {}),
    (["--segment-boundary", "word"], {"segment_boundary": "word"}, {}),
    (["--learning-rate", "0.25"], {"learning_rate": 0.25}, {}),
    (["--feedback", "score"], {"feedback": "score"}, {}),
    (["--feedback", "none"], {"feedback": None}, {}),
    (["--score", "logit"], {"score": "logit"}, {}),
    (["--exit-threshold", "0.999"], {"exit_threshold": 0.999}, {}),
    (["--max-new-tokens", "7"], {}, {"max_new_tokens": 7}),
    (SAMPLED, {}, SEEDED),
    ([*SAMPLED, "--temperature", "1.5"], {}, {**SEEDED, "temperature": 1.5}),
    ([*SAMPLED, "--top-k", "3"], {}, {**SEEDED, "top_k": 3}),
    ([*SAMPLED, "--top-p", "0.4"], {}, {**SEEDED, "top_p": 0.4}),
    ([*SAMPLED, "--min-p", "0.2"], {}, {**SEEDED, "min_p": 0.2}),
    (["--repetition-penalty", "1.7"], {}, {"repetition_penalty": 1.7}),
    (["--stop", "e", "--stop", "n a"], {}, {"stop_strings": ["e", "n a"]}),
]
# Those with tests of their own, here or in `test_cli`.
OTHERS = {"help", "model", "verifier", "prompt", "messages", "dtype", "device"}
OTHERS |= {"stream", "trace", "json"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return saved(three_families(torch.float32), tmp_path_factory.mktemp("models"))


def specem(folders, *arguments):
    models = [word for folder in folders for word in ("--model", folder)]
    try:
        return main(["specem", *models, *arguments])
    except SystemExit as end:  # how argparse ends
        return end.code


def decoded(capsys):
    """What was printed as JSON, without how long it took."""
    printed = json.loads(capsys.readouterr().out)
    trace = printed["rounds"]
    for round_ in trace["rounds"]:
        round_.pop("seconds")
    return printed["text"], printed["token_ids"], printed["finish_reason"], trace


@pytest.mark.parametrize(("flags", "method", "run"), FLAGS, ids=lambda value: str(value)[:40])
def test_a_flag_is_the_option_of_its_name(folders, capsys, flags, method, run):
    limit = [] if "max_new_tokens" in run else ["--max-new-tokens", "24"]
    assert specem(folders[:2], "--prompt", PROMPT, "--json", *limit, *flags) == 0
    got = decoded(capsys)
    members = [Member.from_pretrained(folder) for folder in folders[:2]]
    output = SpecEM(members, **method).generate(PROMPT, **{"max_new_tokens": 24, **run})
    print(to_json(output))
    assert got == decoded(capsys)
    assert {**got[3]["options"], **method, **run} == got[3]["options"]


def test_verifiers_only_judge(folders, capsys):
    flags = ["--verifier", folders[2], "--verifier", folders[0], "--max-new-tokens", "12"]
    assert specem(folders[:2], "--prompt", PROMPT, "--json", *flags) == 0
    trace = decoded(capsys)[3]
    names = [folder.rsplit("/", 1)[1] for folder in folders]
    assert trace["members"] == [*names, names[0]]
    assert trace["options"]["verifiers"] == 2
    for round_ in trace["rounds"]:
        for candidate in round_["candidates"]:
            assert set(candidate["drafted_by"]) <= {0, 1}
            assert len(candidate["shares"]) == 4


@pytest.mark.parametrize(
    ("flags", "dtype", "device"),
    [
        ([], "auto", None),
        (["--dtype", "float64"], torch.float64, None),
        (["--dtype", "bfloat16", "--device", "cpu"], torch.bfloat16, "cpu"),
    ],
)
def test_dtype_and_device_of_all_models(folders, capsys, monkeypatch, flags, dtype, device):
    loaded, original = [], Member.from_pretrained

    def load(path, **options):
        loaded.append((path, options["dtype"], options["device"]))
        return original(path, **options)

    monkeypatch.setattr(Member, "from_pretrained", load)
    models = ["--verifier", folders[2], "--prompt", "a", "--max-new-tokens", "3"]
    assert specem(folders[:2], *models, *flags) == 0
    assert loaded == [(folder, dtype, device) for folder in folders]


def test_every_flag_is_tested(capsys):
    with pytest.raises(SystemExit):
        main(["specem", "--help"])
    known = set(re.findall(r"--([a-z-]+)", capsys.readouterr().out))
    tested = {word[2:] for flags, *_ in FLAGS for word in flags if word.startswith("--")}
    assert tested | OTHERS == known


def refused(capsys):
    """The one line on standard error; nothing on standard output."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ensemble-decode: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    return err


NUMBERS = {
    "segment-length": ("0", "segment_length must be at least 1, got 0"),
    "learning-rate": ("-1", "learning_rate must be finite and at least 0, got -1.0"),
    "exit-threshold": ("nan", "exit_threshold must be finite and at least 0, got nan"),
    "max-new-tokens": ("0", "max_new_tokens must be at least 1, got 0"),
    "temperature": ("0", "temperature must be positive and finite, got 0.0"),
    "top-k": ("-1", "top_k must be at least 0, got -1"),
    "top-p": ("1.5", "top_p must be above 0 and at most 1, got 1.5"),
    "min-p": ("-0.1", "min_p must be from 0 to 1, got -0.1"),
    "repetition-penalty": ("inf", "repetition_penalty must be positive and finite, got inf"),
    "seed": ("-1", "seed must be at least 0, got -1"),
}
BAD = [
    *((f"--{name}", value, message) for name, (value, message) in NUMBERS.items()),
    *((f"--{name}", "many", f"argument --{name}: invalid ") for name in NUMBERS),
    ("--segment-boundary", "line", "segment_boundary must be one of character, word, got 'line'"),
    ("--feedback", "loss", "argument --feedback: invalid choice: 'loss'"),
    ("--score", "loss", "score must be one of logprob, logit, got 'loss'"),
    ("--stop", "", "stop_strings must be texts that are not empty, got ''"),
    ("--dtype", "Tensor", "--dtype must be auto or the name of a torch dtype, got 'Tensor'"),
    ("--device", "nowhere", "--device must be a device that is here, got 'nowhere': "),
    ("--device", "", "--device must be a device that is here, got ''"),
    ("--device", "cuda:99", "--device must be a device that is here, got 'cuda:99': "),
    ("--trace", "/nowhere/t.json", "--trace must be a file in a folder that exists"),
    ("--trace", "/", "--trace must be a file in a folder that exists"),
    ("--messages", "m.json", "--prompt and --messages exclude each other, got both"),
    ("--beams", "4", "unrecognized arguments: --beams 4"),
]


@pytest.mark.parametrize(("flag", "value", "message"), BAD)
def test_a_bad_value_is_one_line_before_any_model_is_loaded(
    capsys, monkeypatch, flag, value, message
):
    monkeypatch.setattr(Member, "from_pretrained", lambda *_, **__: 1 / 0)
    assert specem(["a", "b"], "--prompt", "c", "--do-sample", flag, value) == 2
    assert message in refused(capsys)


@pytest.mark.parametrize("flag", sorted({flag for flag, *_ in BAD if flag != "--beams"}))
def test_a_flag_without_its_value(capsys, flag):
    assert specem(["a", "b"], "--prompt", "c", flag) == 2
    assert f"argument {flag}: expected one argument" in refused(capsys)


@pytest.mark.parametrize("flag", ["--do-sample", "--stream", "--json"])
def test_a_flag_that_takes_no_value(capsys, flag):
    assert specem(["a", "b"], "--prompt", "c", f"{flag}=1") == 2
    assert f"argument {flag}: ignored explicit argument '1'" in refused(capsys)


def test_a_verifier_that_does_not_exist(folders, capsys):
    assert specem(folders[:2], "--prompt", "a", "--verifier", "/nowhere/at/all") == 2
    assert "no model could be loaded from '/nowhere/at/all'" in refused(capsys)


@pytest.mark.parametrize(("content", "came"), [(b"\xff\xfe[", "codec"), (None, "directory")])
def test_messages_that_cannot_be_read(capsys, tmp_path, content, came):
    path = tmp_path
    if content is not None:
        path = tmp_path / "m.json"
        path.write_bytes(content)
    assert specem(["a", "b"], "--messages", str(path)) == 2
    err = refused(capsys)
    assert err.startswith("ensemble-decode: --messages must be ")
    assert came in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plot"], "required: trace, -o/--output"),
        (["plot", "t.json"], "required: -o/--output"),
        (["plot", "t.json", "-o"], "argument -o/--output: expected one argument"),
        (["plot", "t.json", "u.json", "-o", "w.png"], "unrecognized arguments: u.json"),
        (["plot", "/nowhere.json", "-o", "w.png"], "trace must be a file that can be read, got"),
        (["plot", "/nowhere.json", "-o", "w.txt"], "output must end in .png, .svg, .pdf, got"),
        (["models"], "required: action"),
        (["models", "eat"], "argument action: invalid choice: 'eat'"),
        (["models", "fetch", "all"], "unrecognized arguments: all"),
    ],
)
def test_other_commands(capsys, monkeypatch, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    try:
        code = main(arguments)
    except SystemExit as end:
        code = end.code
    assert code == 2
    assert message in refused(capsys)
    assert not list(tmp_path.iterdir())


def test_models_fetch_fetches_and_reports(capsys, monkeypatch):
    monkeypatch.setattr(
        "ensemble_decoding.demo_models.fetch", lambda *, report: report("two models")
    )
    assert main(["models", "fetch"]) == 0
    assert capsys.readouterr().out == "two models\n"


def test_models_that_cannot_be_fetched(capsys, monkeypatch):
    def fetch(*, report):
        raise OSError("no network\nat all")

    monkeypatch.setattr("ensemble_decoding.demo_models.fetch", fetch)
    assert main(["models", "fetch"]) == 2
    assert "no network at all" in refused(capsys)
