"""`unite`, `gac` and `average` on the command line."""

import json

import pytest

from ensemble_decoding import Member, TokenEnsemble, Trace
from ensemble_decoding.cli import main
from tests.decoding.members_for_tests import PROMPT, member, saved, three_families
from tests.decoding.test_cli import refused

SEEDED = {"do_sample": True, "seed": 7}
RUNS = [
    ("unite", [], {"alignment": "top_k"}, {}),
    ("unite", ["--k", "2"], {"alignment": "top_k", "k": 2}, {}),
    ("gac", [], {"alignment": "union"}, {}),
    ("gac", ["--threshold", "0.05"], {"alignment": "union", "threshold": 0.05}, {}),
    ("gac", ["--mean", "geometric"], {"alignment": "union", "mean": "geometric"}, {}),
    (
        "gac",
        ["--weight", "3", "--weight", "1"],
        {"alignment": "union", "weights": [3.0, 1.0]},
        {},
    ),
    ("gac", ["--do-sample", "--seed", "7", "--top-k", "5"], {}, {**SEEDED, "top_k": 5}),
    ("unite", ["--stop", "e", "--max-new-tokens", "9"], {"alignment": "top_k"}, {}),
    ("average", ["--repetition-penalty", "1.4"], {}, {"repetition_penalty": 1.4}),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return saved(three_families()[:2], tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def twins(tmp_path_factory):
    pair = [member(seed=1), member(seed=2)]
    return saved(pair, tmp_path_factory.mktemp("twins"))


def decode(command, folders, *arguments):
    models = [word for folder in folders for word in ("--model", folder)]
    try:
        return main([command, *models, *arguments])
    except SystemExit as end:
        return end.code


@pytest.mark.parametrize(("command", "flags", "method", "run"), RUNS, ids=str)
def test_a_command_is_the_method_with_its_options(
    folders, twins, capsys, command, flags, method, run
):
    used = twins if command == "average" else folders
    limit = [] if "--max-new-tokens" in flags else ["--max-new-tokens", "16"]
    assert decode(command, used, "--prompt", PROMPT, "--json", *limit, *flags) == 0
    out, err = capsys.readouterr()
    printed = json.loads(out)
    members = [Member.from_pretrained(folder) for folder in used]
    options = {"max_new_tokens": 16, **run}
    if "--stop" in flags:
        options |= {"max_new_tokens": 9, "stop_strings": ["e"]}
    expected = TokenEnsemble(members, **method).generate(PROMPT, **options)
    assert printed["text"] == expected.text
    assert printed["token_ids"] == expected.token_ids
    assert printed["rounds"]["options"] == expected.rounds.options
    assert printed["ensembled_share"] == expected.ensembled_share
    assert f"ensembled: {expected.ensembled_share:.0%}" in err


def test_text_is_streamed_and_the_trace_written_and_drawn(folders, capsys, tmp_path):
    trace = tmp_path / "trace.json"
    flags = ["--prompt", PROMPT, "--max-new-tokens", "12", "--trace", str(trace)]
    assert decode("unite", folders, *flags, "--stream") == 0
    streamed = capsys.readouterr().out
    assert decode("unite", folders, *flags) == 0
    assert capsys.readouterr().out == streamed
    rounds = Trace.load(trace)
    assert streamed == "".join(round_.text for round_ in rounds) + "\n"
    assert main(["plot", str(trace), "-o", str(tmp_path / "weights.png")]) == 0
    assert (tmp_path / "weights.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("command", "flags", "message"),
    [
        ("unite", ["--k", "0"], "k must be at least 1, got 0"),
        ("gac", ["--k", "3"], "unrecognized arguments: --k 3"),
        ("gac", ["--mean", "harmonic"], "mean must be one of arithmetic, geometric, got"),
        ("gac", ["--threshold", "2"], "threshold must be from 0 to 1, got 2.0"),
        ("average", ["--weight", "1"], "weights must have an entry for each of the 2 members"),
        ("average", [], "alignment must be union or top_k where members have different"),
        ("unite", ["--max-new-tokens", "0"], "max_new_tokens must be at least 1, got 0"),
    ],
)
def test_bad_flags_are_one_line(folders, capsys, command, flags, message):
    assert decode(command, folders, "--prompt", PROMPT, *flags) == 2
    assert message in refused(capsys)


@pytest.mark.parametrize("command", ["unite", "gac", "average"])
def test_one_model(folders, capsys, command):
    assert decode(command, folders[:1], "--prompt", "a") == 2
    assert "--model must be given at least twice, got 1" in refused(capsys)
