"""The command line, on tiny models in folders."""

import io
import json
import subprocess
import sys

import pytest
import transformers
from packaging.version import Version

from ensemble_decoding import Member, SpecEM, Trace
from ensemble_decoding.cli import main
from ensemble_decoding.context import DecodingContext
from tests.decoding.members_for_tests import PROMPT, saved, three_families

# An older transformers rebuilds wrong tokenizers from GGUF files, so there they are refused.
GGUF_REFUSED = (
    "GGUF files need transformers 5.23"
    if Version(transformers.__version__) < Version("5.23")
    else None
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return saved(three_families()[:2], tmp_path_factory.mktemp("models"))


def specem(folders, *arguments):
    models = [word for folder in folders for word in ("--model", folder)]
    return main(["specem", *models, "--max-new-tokens", "24", *arguments])


def expected(folders, **request):
    members = [Member.from_pretrained(folder) for folder in folders]
    return SpecEM(members).generate(**request, max_new_tokens=24)


def test_a_prompt_gives_the_text_and_a_summary(folders, capsys):
    assert specem(folders, "--prompt", PROMPT) == 0
    out, err = capsys.readouterr()
    wanted = expected(folders, prompt=PROMPT)
    assert out == wanted.text + "\n"
    assert f"{len(wanted.token_ids[0])} tokens in" in err
    assert "tokens/s" in err
    assert "llama-5" in err


def test_streamed_text_is_the_text(folders, capsys):
    assert specem(folders, "--prompt", PROMPT, "--stream") == 0
    assert capsys.readouterr().out == expected(folders, prompt=PROMPT).text + "\n"


def test_a_prompt_from_standard_input(folders, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(PROMPT + "\n"))
    assert specem(folders) == 0
    assert capsys.readouterr().out == expected(folders, prompt=PROMPT).text + "\n"


def test_messages_from_a_file_and_a_trace_and_json(folders, capsys, tmp_path):
    messages = [{"role": "user", "content": PROMPT}]
    (tmp_path / "messages.json").write_text(json.dumps(messages))
    trace = tmp_path / "trace.json"
    code = specem(
        folders, "--messages", str(tmp_path / "messages.json"), "--json", "--trace", str(trace)
    )
    assert code == 0
    printed = json.loads(capsys.readouterr().out)
    wanted = expected(folders, messages=messages)
    assert printed["text"] == wanted.text
    assert printed["token_ids"] == wanted.token_ids
    assert printed["usage"][0]["prompt_tokens"] == wanted.usage[0].prompt_tokens
    assert [r.data for r in Trace.load(trace)] == [r.data for r in wanted.rounds]


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (OSError("disk\non fire"), 1, "ensemble-decode: round 2 failed: disk on fire\n"),
        (KeyboardInterrupt(), 130, "ensemble-decode: interrupted\n"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("shown", ["", "--stream", "--json"])
def test_what_was_generated_before_a_failure_is_kept(
    folders, capsys, monkeypatch, tmp_path, error, code, line, shown
):
    original, calls = DecodingContext.verify, []

    def verify(self, candidates):
        calls.append(1)
        if len(calls) == 3:  # the second round's first
            raise error
        return original(self, candidates)

    first = expected(folders, prompt=PROMPT).rounds[0]
    monkeypatch.setattr(DecodingContext, "verify", verify)
    trace = tmp_path / "trace.json"
    flags = [shown] if shown else []
    assert specem(folders, "--prompt", PROMPT, "--trace", str(trace), *flags) == code
    out, err = capsys.readouterr()
    text = json.loads(out)["text"] if shown == "--json" else out.removesuffix("\n")
    assert text == first.text
    assert [r.data for r in Trace.load(trace)] == [first.data]
    assert err.startswith(line)
    assert "finished: error" in err


def refused(capsys):
    """The one line on standard error; nothing on standard output."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ensemble-decode: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize("tokens", ["0", "-4"])
def test_no_tokens_at_all(folders, capsys, tokens):
    models = ["--model", folders[0], "--model", folders[1]]
    assert main(["specem", *models, "--prompt", "a", "--max-new-tokens", tokens]) == 2
    assert f"max_new_tokens must be at least 1, got {tokens}" in refused(capsys)


@pytest.mark.parametrize("verifiers", [[], [1]])
def test_one_model_and_those_that_only_judge(folders, capsys, verifiers):
    flags = [word for n in verifiers for word in ("--verifier", folders[n])]
    assert specem(folders[:1], "--prompt", PROMPT, *flags) == 0
    one, *judges = [Member.from_pretrained(folders[n]) for n in (0, *verifiers)]
    wanted = SpecEM([one], verifiers=judges).generate(PROMPT, max_new_tokens=24)
    assert capsys.readouterr().out == wanted.text + "\n"


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_standard_input_that_is_no_text(folders, capsys, monkeypatch, errors):
    stdin = io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), encoding="utf-8", errors=errors)
    monkeypatch.setattr("sys.stdin", stdin)
    assert specem(folders) == 2
    assert "standard input must be text, got bytes that are none" in refused(capsys)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["specem", "--prompt", "a"], "--model"),
        (["specem", "--model", "a", "--model", "b", "--max-new-tokens", "many"], "'many'"),
        (["specem", "--model", "a", "--beams", "4"], "--beams"),
        (["conjure"], "'conjure'"),
        ([], "command"),
    ],
)
def test_arguments_that_are_none(capsys, arguments, message):
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert error.value.code == 2
    assert message in refused(capsys)


def test_a_gated_model(folders, capsys, monkeypatch):
    # What transformers raises, in two lines.
    def gated(path, **options):
        raise OSError(
            "You are trying to access a gated repo.\nMake sure to have access to it at ..."
        )

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", gated)
    assert specem([folders[0], "google/gated"], "--prompt", "a") == 2
    assert "trying to access a gated repo. Make sure" in refused(capsys)


def test_a_model_that_does_not_exist(folders, capsys):
    assert specem([folders[0], "/nowhere/at/all"], "--prompt", "a") == 2
    assert "/nowhere/at/all" in refused(capsys)


def test_a_hub_id_that_does_not_exist(folders, capsys, monkeypatch):
    # Read once, at import; without it every try would wait for a network.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert specem([folders[0], "nobody/nothing-at-all"], "--prompt", "a") == 2
    assert "nobody/nothing-at-all" in refused(capsys)


def test_a_broken_gguf_file(folders, capsys, tmp_path):
    (tmp_path / "broken.gguf").write_bytes(b"GGUF but not really")
    assert specem([folders[0], str(tmp_path / "broken.gguf")], "--prompt", "a") == 2
    assert (GGUF_REFUSED or "broken.gguf") in refused(capsys)


def test_a_gguf_file_that_is_not_there(folders, capsys, tmp_path):
    assert specem([folders[0], str(tmp_path / "none.gguf")], "--prompt", "a") == 2
    assert (GGUF_REFUSED or "none.gguf") in refused(capsys)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{not json", "--messages must be JSON"),
        ('{"role": "user"}', "messages must be a list"),
        ('[{"role": "user"}]', "messages[0] must have a text 'content', got none"),
        ("[]", "messages must hold at least one message"),
    ],
)
def test_messages_of_a_wrong_shape(folders, capsys, tmp_path, content, message):
    (tmp_path / "m.json").write_text(content)
    assert specem(folders, "--messages", str(tmp_path / "m.json")) == 2
    assert message in refused(capsys)


def test_a_messages_file_that_is_not_there(folders, capsys, tmp_path):
    assert specem(folders, "--messages", str(tmp_path / "none.json")) == 2
    assert "none.json" in refused(capsys)


def test_a_prompt_and_messages(folders, capsys, tmp_path):
    assert specem(folders, "--prompt", "a", "--messages", "x") == 2
    assert "--prompt and --messages exclude each other" in refused(capsys)


def test_no_prompt_at_all(folders, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    assert specem(folders) == 2
    assert "a prompt must come from" in refused(capsys)


def test_an_unknown_dtype(folders, capsys):
    assert specem(folders, "--prompt", "a", "--dtype", "float31") == 2
    assert "--dtype must be auto or the name of a torch dtype, got 'float31'" in refused(capsys)


def test_a_prompt_longer_than_a_context(folders, capsys):
    assert specem(folders, "--prompt", "the " * 3000) == 2
    assert "prompt must be shorter than the context of member 'llama-5'" in refused(capsys)


def test_a_trace_that_cannot_be_written_is_told_before_decoding(folders, capsys, tmp_path):
    assert specem(folders, "--prompt", "a", "--trace", str(tmp_path / "no" / "t.json")) == 2
    assert "--trace" in refused(capsys)


def test_without_the_extra_one_line_says_what_to_install():
    program = (
        "import sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('transformers', 'rich'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Hide())\n"
        "from ensemble_decoding.cli import main\n"
        "sys.exit(main(['specem', '--model', 'a', '--model', 'b', '--prompt', 'c']))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "ensemble-decode: transformers is not installed: "
        "pip install 'ensemble-kernels[decoding]' brings it\n"
    )


def test_help_needs_no_extra_and_loads_no_torch():
    program = (
        "import sys\n"
        "from ensemble_decoding.cli import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit:\n    pass\n"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "specem" in done.stdout
