"""`safe` on the command line."""

import json

import pytest

from ensemble_decoding import SAFE, Member, Trace
from tests.decoding.members_for_tests import PROMPT, member, saved, three_families
from tests.decoding.test_cli import refused
from tests.decoding.test_cli_token_ensembles import decode

RUNS = [
    ([], {}, {}),
    (["--draft-length", "2"], {"draft_length": 2}, {}),
    (["--when", "always"], {"ensemble_when": "always"}, {}),
    (["--when", "never"], {"ensemble_when": "never"}, {}),
    (["--sharpen", "none"], {"sharpen": None}, {}),
    (["--sharpen", "geometric"], {"sharpen": "geometric"}, {}),
    (["--alignment", "top_k", "--k", "3"], {"alignment": "top_k", "k": 3}, {}),
    (["--weight", "3", "--weight", "1"], {"weights": [3.0, 1.0]}, {}),
    (
        ["--do-sample", "--seed", "7", "--top-k", "5"],
        {},
        {"do_sample": True, "seed": 7, "top_k": 5},
    ),
    (["--stop", "e"], {}, {"stop_strings": ["e"]}),
    (["--repetition-penalty", "1.4"], {}, {"repetition_penalty": 1.4}),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return saved(three_families()[:2], tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def members(folders):
    return [Member.from_pretrained(folder) for folder in folders]


@pytest.mark.parametrize(("flags", "method", "run"), RUNS, ids=str)
def test_the_command_is_the_method_with_its_options(folders, members, capsys, flags, method, run):
    common = ["--prompt", PROMPT, "--json", "--max-new-tokens", "16"]
    assert decode("safe", folders, *common, *flags) == 0
    out, err = capsys.readouterr()
    printed = json.loads(out)
    expected = SAFE(members[0], members[1:], **method).generate(PROMPT, max_new_tokens=16, **run)
    assert printed["text"] == expected.text
    assert printed["token_ids"] == expected.token_ids
    assert printed["rounds"]["options"] == expected.rounds.options
    assert printed["rounds"]["method"] == "safe"
    assert printed["ensembled_share"] == expected.ensembled_share
    if expected.ensembled_share is not None:
        assert f"ensembled: {expected.ensembled_share:.0%}" in err


def test_the_identity_alignment(tmp_path, capsys):
    twins = saved([member(seed=1), member(seed=2)], tmp_path)
    flags = ["--prompt", PROMPT, "--max-new-tokens", "6", "--alignment", "identity"]
    assert decode("safe", twins, *flags) == 0
    assert capsys.readouterr().out.strip()


def test_text_is_streamed_and_the_trace_written(folders, capsys, tmp_path):
    trace = tmp_path / "trace.json"
    flags = ["--prompt", PROMPT, "--max-new-tokens", "12", "--trace", str(trace)]
    assert decode("safe", folders, *flags, "--stream") == 0
    streamed = capsys.readouterr().out
    assert decode("safe", folders, *flags) == 0
    assert capsys.readouterr().out == streamed
    rounds = Trace.load(trace)
    assert streamed == "".join(round_.text for round_ in rounds) + "\n"
    assert all(round_.decisions for round_ in rounds)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--draft-length", "0"], "draft_length must be at least 1, got 0"),
        (["--draft-length", "many"], "argument --draft-length: invalid int value: 'many'"),
        (["--when", "often"], "ensemble_when must be one of safe, always, never, got 'often'"),
        (["--sharpen", "harmonic"], "sharpen must be one of prefix, geometric"),
        (["--alignment", "identity"], "alignment must be union or top_k where members have"),
        (["--k", "0"], "k must be at least 1, got 0"),
        (["--weight", "1"], "weights must have an entry for each of the 2 members"),
        (["--mean", "geometric"], "unrecognized arguments: --mean geometric"),
        (["--max-new-tokens", "0"], "max_new_tokens must be at least 1, got 0"),
    ],
)
def test_bad_flags_are_one_line(folders, capsys, flags, message):
    assert decode("safe", folders, "--prompt", PROMPT, *flags) == 2
    assert message in refused(capsys)


def test_one_model(folders, capsys):
    assert decode("safe", folders[:1], "--prompt", "a") == 2
    assert "--model must be given at least twice, got 1" in refused(capsys)
