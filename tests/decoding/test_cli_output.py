"""What the command line does where its output is not taken as it is."""

import io
import json
import subprocess
import sys

import pytest

from ensemble_decoding import Member, SpecEM, Trace
from ensemble_decoding.cli import main
from tests.decoding.members_for_tests import PROMPT, saved, three_families

TOKENS = 24


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return saved(three_families()[:2], tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def expected(folders):
    members = [Member.from_pretrained(folder) for folder in folders]
    output = SpecEM(members).generate(PROMPT, max_new_tokens=TOKENS)
    assert not output.text.isascii()
    return output


def arguments(folders, *more):
    models = [word for folder in folders for word in ("--model", folder)]
    return ["specem", *models, "--prompt", PROMPT, "--max-new-tokens", str(TOKENS), *more]


@pytest.mark.parametrize("flag", ["--stream", "--json", None])
def test_an_output_that_lacks_characters(folders, expected, monkeypatch, capsys, tmp_path, flag):
    printed = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(printed, encoding="ascii"))
    trace = tmp_path / "trace.json"
    flags = [flag] if flag else []
    assert main(arguments(folders, "--trace", str(trace), *flags)) == 0
    if flag == "--json":
        assert json.loads(printed.getvalue())["text"] == expected.text
    else:
        assert printed.getvalue() == (expected.text + "\n").encode("ascii", "replace")
    assert [r.data for r in Trace.load(trace)] == [r.data for r in expected.rounds]
    assert "finished: " in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--stream", "--json", None])
def test_a_reader_that_leaves(folders, expected, tmp_path, flag):
    trace = tmp_path / "trace.json"
    flags = [flag] if flag else []
    program = "import sys\nfrom ensemble_decoding.cli import main\nsys.exit(main(sys.argv[1:]))\n"
    command = [sys.executable, "-c", program]
    command += arguments(folders, "--segment-length", "2", "--trace", str(trace), *flags)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    error = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), error) == (141, b"")
    assert len(Trace.load(trace)) >= 1


class Gone(io.StringIO):
    def write(self, text):
        raise BrokenPipeError(32, "Broken pipe")


def test_a_reader_of_errors_that_leaves(folders, expected, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr", Gone())
    assert main(arguments(folders)) == 141
    assert capsys.readouterr().out == expected.text + "\n"
