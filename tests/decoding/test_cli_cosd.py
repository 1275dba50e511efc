"""`cosd`, `train-tree`, `calibrate` and `sweep` on the command line."""

import json
import subprocess
import sys

import pytest

from ensemble_decoding import CoSD, Member, Trace
from ensemble_decoding.calibration import Calibration, calibrate
from ensemble_decoding.cli import main
from ensemble_decoding.examples import collect_examples
from ensemble_decoding.rule_sweep import sweep
from ensemble_decoding.teacher_forcing import read_texts
from ensemble_decoding.tree import Node, Tree, fit_tree
from tests.decoding.members_for_tests import PROMPT, saved, three_families
from tests.decoding.test_cli import refused
from tests.decoding.test_cosd_examples import texts_of

TREE = Tree([Node(2, None, "draft_probability", 0.06, 1, 2), Node(1, True), Node(1, False)])


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return saved(three_families(), tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Texts, a tree, and a calibration for each model."""
    folder = tmp_path_factory.mktemp("files")
    texts = [(t[0], t[1]) if isinstance(t, tuple) else t for t in texts_of(three_families()[:2])]
    (folder / "texts.jsonl").write_text("\n".join(map(json.dumps, texts)))
    (folder / "texts.txt").write_text("fox\n")
    TREE.save(folder / "tree.json")
    for number in range(3):
        bins = []
        Calibration("m", 1, 0.8 + number / 5, 1.0, 1.0, 0.0, 0.0, bins, bins).save(
            folder / f"{number}.json"
        )
    return folder


def command(name, folders, *arguments):
    models = [word for folder in folders for word in ("--model", folder)]
    try:
        return main([name, *models, *map(str, arguments)])
    except SystemExit as end:
        return end.code


RUNS = [
    ([], {}, {}),
    (["--alpha", "0.08", "--beta", "0.9", "--draft-length", "3"], {}, {}),
    (["--select", "cascade", "--unsure-below", "0.07", "--alpha", "0.1"], {}, {}),
    (["--max-entropy", "4.7"], {}, {}),
    (["--second-look", "--alpha", "0.2"], {"second_look": True}, {}),
    (["--do-sample", "--seed", "7", "--top-k", "5"], {}, {"do_sample": True, "seed": 7}),
]


@pytest.mark.parametrize(("flags", "method", "run"), RUNS, ids=str)
def test_the_command_is_the_method_with_its_options(folders, capsys, flags, method, run):
    words = dict(zip(flags[::2], flags[1::2], strict=False)) if not method else {"--alpha": "0.2"}
    method = {**method}
    for name, kind in (
        ("alpha", float),
        ("beta", float),
        ("draft_length", int),
        ("select", str),
        ("unsure_below", float),
        ("max_entropy", float),
    ):
        flag = "--" + name.replace("_", "-")
        if flag in words:
            method[name] = kind(words[flag])
    run = {**run, "top_k": 5} if run else {}
    assert (
        command("cosd", folders, "--prompt", PROMPT, "--json", "--max-new-tokens", 14, *flags) == 0
    )
    out, err = capsys.readouterr()
    printed = json.loads(out)
    draft, *assistants = [Member.from_pretrained(folder) for folder in folders]
    expected = CoSD(draft, assistants, **method).generate(PROMPT, max_new_tokens=14, **run)
    assert printed["text"] == expected.text
    assert printed["token_ids"] == expected.token_ids
    assert printed["rounds"]["options"] == expected.rounds.options
    assert "tokens/s" in err


def test_a_tree_and_calibrations_from_files(folders, files, capsys, tmp_path):
    flags = ["--tree", files / "tree.json", "--prompt", PROMPT, "--max-new-tokens", 14]
    for number in range(3):
        flags += ["--calibration", files / f"{number}.json"]
    trace = tmp_path / "trace.json"
    assert command("cosd", folders, *flags, "--trace", trace, "--stream") == 0
    out = capsys.readouterr().out
    draft, *assistants = [Member.from_pretrained(folder) for folder in folders]
    temperatures = [Calibration.load(files / f"{number}.json").temperature for number in range(3)]
    method = CoSD(draft, assistants, tree=TREE, temperatures=temperatures)
    expected = method.generate(PROMPT, max_new_tokens=14)
    assert out == expected.text + "\n"
    assert Trace.load(trace).options == expected.rounds.options
    assert [r.decisions for r in Trace.load(trace)] == [r.decisions for r in expected.rounds]


def test_training_calibrating_and_sweeping(folders, files, capsys, tmp_path):
    pair, texts = folders[:2], files / "texts.jsonl"
    members = [Member.from_pretrained(folder) for folder in pair]
    known = read_texts(texts)
    out = tmp_path / "tree.json"
    flags = ["--texts", texts, "-o", out, "--held-out", "0.3", "--max-depth", 2, "--seed", 5]
    assert command("train-tree", pair, *flags, "--examples", tmp_path / "e.jsonl") == 0
    printed = capsys.readouterr().out
    examples = collect_examples(*members, known, progress=False)
    expected = fit_tree(examples, held_out=0.3, seed=5, max_depth=2)
    assert Tree.load(out) == expected
    assert printed.startswith(str(expected))
    assert f"{len(examples)} examples, accuracy {expected.accuracy:.1%} on " in printed
    assert len((tmp_path / "e.jsonl").read_text().splitlines()) == len(known)

    out = tmp_path / "calibration.json"
    flags = ["--texts", texts, "-o", out, "--plot", tmp_path / "calibration.png"]
    assert command("calibrate", pair[:1], *flags) == 0
    expected = calibrate(members[0], known, progress=False)
    assert Calibration.load(out) == expected
    assert capsys.readouterr().out == f"{expected}\n"
    assert (tmp_path / "calibration.png").stat().st_size > 5000

    flags = ["--texts", texts, "--alpha", 0.1, "--alpha", 1, "--beta", 0.5]
    assert command("sweep", pair, *flags, "--plot", tmp_path / "sweep.svg") == 0
    expected = sweep(*members, known, [0.1, 1.0], [0.5], progress=False)
    assert capsys.readouterr().out == f"{expected}\n"
    assert (tmp_path / "sweep.svg").stat().st_size > 5000


BAD = [
    ("cosd", ["--alpha", "2"], "alpha must be from 0 to 1, got 2.0"),
    ("cosd", ["--alpha", "much"], "argument --alpha: invalid float value: 'much'"),
    ("cosd", ["--beta", "nan"], "beta must be finite and at least 0, got nan"),
    ("cosd", ["--draft-length", "0"], "draft_length must be at least 1, got 0"),
    ("cosd", ["--select", "best"], "select must be one of most_confident, cascade"),
    ("cosd", ["--unsure-below", "7"], "unsure_below must be from 0 to 1, got 7.0"),
    ("cosd", ["--max-entropy", "-1"], "max_entropy must be at least 0, got -1.0"),
    ("cosd", ["--tree", "no.json"], "--tree must be a file that can be read, got no.json: No such"),
    ("cosd", ["--tree", "{files}/0.json"], "--tree must be a tree that Tree.save wrote, got "),
    ("cosd", ["--tree", "{files}/0.json"], "its format must be 'ensemble-decoding CoSD tree 1'"),
    ("cosd", ["--calibration", "no.json"], "--calibration must be a file that can be read, got no"),
    ("cosd", ["--calibration", "{files}/tree.json"], "--calibration must be a calibration that "),
    ("cosd", ["--calibration", "{files}/tree.json"], "its format must be 'ensemble-decoding cali"),
    ("cosd", ["--calibration", "{files}/0.json"], "temperatures must have an entry for each of"),
    ("cosd", ["--max-new-tokens", "0"], "max_new_tokens must be at least 1, got 0"),
    ("train-tree", [], "the following arguments are required: --texts, -o/--output"),
    ("train-tree", ["--texts", "{files}/texts.jsonl", "-o", "x"], "--model must be given 2 times"),
    ("sweep", ["--texts", "{files}/texts.jsonl"], "--model must be given 2 times, got 3"),
]
PAIR = [
    ("train-tree", ["--texts", "nowhere.txt", "-o", "{tmp}/t"], "--texts must be a file that can"),
    ("train-tree", ["--texts", "{files}/texts.txt", "-o", "{tmp}/t"], "line 1, must have at least"),
    (
        "train-tree",
        ["--texts", "{files}/texts.jsonl", "-o", "{tmp}/no/t"],
        "--output must be a file in a folder that exists, got ",
    ),
    (
        "train-tree",
        ["--texts", "{files}/texts.jsonl", "-o", "{tmp}/t", "--held-out", "2"],
        "held_out must be from 0 to below 1, got 2.0",
    ),
    (
        "train-tree",
        ["--texts", "{files}/texts.jsonl", "-o", "{tmp}/t", "--max-depth", "0"],
        "max_depth must be at least 1, got 0",
    ),
    (
        "train-tree",
        ["--texts", "{files}/texts.jsonl", "-o", "{tmp}/t", "--seed", "-1"],
        "seed must be from 0 to 4294967295, got -1",
    ),
    (
        "train-tree",
        ["--texts", "{files}/texts.jsonl", "-o", "{tmp}/t", "--examples", "{files}/texts.txt"],
        "path must hold examples that collect_examples wrote",
    ),
    ("sweep", ["--texts", "{files}/texts.jsonl", "--alpha", "2"], "alphas[0] must be from 0 to 1"),
    (
        "sweep",
        ["--texts", "{files}/texts.jsonl", "--plot", "{tmp}/a.gif"],
        "must end in .png, .svg",
    ),
]
ONE = [
    ("calibrate", ["--texts", "{files}/texts.jsonl", "-o", "{tmp}"], "--output must be a file in"),
    (
        "calibrate",
        ["--texts", "{files}/texts.jsonl", "-o", "{tmp}/c", "--plot", "{tmp}/c.txt"],
        "must end in .png, .svg or .pdf",
    ),
]


@pytest.mark.parametrize(
    ("count", "name", "flags", "message"),
    [(count, *bad) for count, table in ((3, BAD), (2, PAIR), (1, ONE)) for bad in table],
    ids=str,
)
def test_bad_flags_are_one_line(folders, files, tmp_path, capsys, count, name, flags, message):
    flags = [flag.format(files=files, tmp=tmp_path) for flag in flags]
    request = ["--prompt", PROMPT] if name == "cosd" else []
    assert command(name, folders[:count], *request, *flags) == 2
    assert message in refused(capsys)
    assert not any(tmp_path.iterdir())


def test_one_model(folders, capsys):
    assert command("cosd", folders[:1], "--prompt", "a") == 2
    assert "--model must be given at least twice, got 1" in refused(capsys)


def test_without_sklearn_one_line_says_what_to_install(folders, files, tmp_path):
    program = (
        "import sys\n"
        "sys.modules['sklearn'] = None\n"
        "from ensemble_decoding.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    flags = ["train-tree", "--texts", files / "texts.jsonl", "-o", tmp_path / "tree.json"]
    models = [word for folder in folders[:2] for word in ("--model", folder)]
    ran = subprocess.run(
        [sys.executable, "-c", program, *map(str, flags), *models], capture_output=True, text=True
    )
    assert ran.returncode == 2
    (line,) = ran.stderr.strip().splitlines()
    assert "ensemble-kernels[tree]" in line
