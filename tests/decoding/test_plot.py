"""The picture of a trace, and the command that draws it."""

import json
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from matplotlib.colors import to_hex, to_rgb

from ensemble_decoding import Trace
from ensemble_decoding.cli import main
from ensemble_decoding.plot import plot_trace
from ensemble_decoding.trace import Candidate, Round

MAGIC = {"png": b"\x89PNG\r\n\x1a\n", "svg": b"<?xml", "pdf": b"%PDF-"}


def a_round(index, weights, drafted_by, *, ended=False, committed=2):
    members = len(weights)
    won = Candidate(b"ab", ended, drafted_by, [[1, 2]] * members)
    return Round(index, [won], weights, 0, "highest score", [committed] * members, {}, "ab", b"ab")


def a_trace(winners, names=("alpha", "beta"), *, last=None):
    """Member 0 gains a little in each round; `winners` says who drafted each winner."""
    rounds = []
    for index, drafted_by in enumerate(winners):
        first = 1 / len(names) + 0.001 * (index + 1)
        rest = [(1 - first) / (len(names) - 1)] * (len(names) - 1)
        options = last if last and index + 1 == len(winners) else {}
        rounds.append(a_round(index, [first, *rest], drafted_by, **options))
    return Trace("specem", list(names), {"segment_length": 10, "seed": None}, rounds)


def cells(figure):
    """For each lane the rounds that are filled in it, with their colours."""
    return [
        {
            round(path.get_extents().x0 + 0.5): to_hex(color)
            for path, color in zip(lane.get_paths(), lane.get_facecolors(), strict=True)
        }
        for lane in figure.axes[1].collections
    ]


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_each_members_line_shows_its_weights_from_equal_ones_on():
    trace = a_trace([[0], [1], [0]])
    lines = plot_trace(trace).axes[0].get_lines()
    assert len(lines) == 2
    for j, line in enumerate(lines):
        assert list(line.get_xdata()) == [0, 1, 2, 3]
        assert list(line.get_ydata()) == [0.5, *(r.weights[j] for r in trace)]
    assert lines[0].get_color() != lines[1].get_color()


def test_a_lane_for_each_member_shows_the_rounds_that_its_draft_won():
    figure = plot_trace(a_trace([[0], [1], [0, 1], [0]]))
    first, second = (to_hex(line.get_color()) for line in figure.axes[0].get_lines())
    grey = to_hex("0.6")
    assert cells(figure) == [{1: first, 3: grey, 4: first}, {2: second, 3: grey}]
    assert [tick.get_text() for tick in figure.axes[1].get_yticklabels()] == ["alpha", "beta"]
    assert legend(figure) == ["alpha: won 3 of 4", "beta: won 2 of 4", "drafted by several"]


@pytest.mark.parametrize(
    ("last", "label"),
    [({"ended": True}, "the text ended"), ({"ended": True, "committed": 1}, "the winner was cut")],
)
def test_the_round_that_ends_the_text_is_marked(last, label):
    figure = plot_trace(a_trace([[0], [1], [1]], last=last))
    assert legend(figure)[2:] == [label]
    for axes in figure.axes:
        assert list(axes.get_lines()[-1].get_xdata()) == [3.5, 3.5]


def test_a_member_that_only_judges_has_a_line_but_no_lane():
    figure = plot_trace(a_trace([[0], [1]], ["alpha", "beta", "judge"]))
    assert len(figure.axes[0].get_lines()) == 3
    assert len(cells(figure)) == 2
    assert legend(figure)[2] == "judge: judged only"


def test_the_title_says_method_and_options():
    figure = plot_trace(a_trace([[0]]))
    assert figure.get_suptitle() == "specem: weights and winners over 1 round"
    assert figure.axes[0].get_title() == "segment_length\u00a010"


def test_long_names_are_shortened_and_equal_ones_told_apart():
    long = "DeepSeek-R1-Distill-Qwen-1.5B-Instruct-GGUF-Q4_K_M"
    shown = legend(plot_trace(a_trace([[0]], [long, "beta"])))[0].split(":")[0]
    assert len(shown) <= 26
    assert shown.startswith("DeepSeek")
    assert shown.endswith("Q4_K_M")
    twins = legend(plot_trace(a_trace([[0]], ["alpha", "alpha"])))
    assert [text.split(":")[0] for text in twins] == ["1. alpha", "2. alpha"]


@pytest.mark.parametrize("members", range(1, 7))
@pytest.mark.parametrize("rounds", [1, 2, 41, 200])
def test_nothing_overlaps_or_leaves_the_page(members, rounds):
    names = ["_member $of$ a very long name", *(f"Some-Family-{j}-Instruct" for j in range(1, 6))]
    weights = [1 / members] * members
    trace = Trace(
        "specem",
        names[:members],
        {f"option_{i}": 0.1 for i in range(12)},
        [a_round(t, weights, [t % members]) for t in range(rounds)],
    )
    figure = plot_trace(trace)
    figure.draw_without_rendering()
    panels = [axes.get_tightbbox() for axes in figure.axes]
    boxes = [*panels, figure.legends[0].get_window_extent()]
    for box in boxes:
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= figure.bbox.width + 1
        assert box.y1 <= figure.bbox.height
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert figure.axes[0].get_window_extent().height > 2 * figure.dpi
    colors = {to_rgb(line.get_color()) for line in figure.axes[0].get_lines()}
    assert len(colors) == members


def test_a_trace_without_rounds_is_refused():
    with pytest.raises(ValueError, match="trace must have at least one round, got none"):
        plot_trace(a_trace([]))


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "trace.json"
    a_trace([[0], [1], [0, 1]], ["al$pha$", "beta"]).save(path)
    return path


@pytest.mark.parametrize("name", ["w.png", "w.svg", "w.pdf", "W.PNG"])
def test_the_command_writes_what_the_suffix_says(saved, tmp_path, name, capsys):
    assert main(["plot", str(saved), "-o", str(tmp_path / name)]) == 0
    assert capsys.readouterr() == ("", "")
    data = (tmp_path / name).read_bytes()
    assert data.startswith(MAGIC[name[2:].lower()])
    if name.endswith("svg"):
        assert ElementTree.fromstring(data).tag == "{http://www.w3.org/2000/svg}svg"


def refused(capsys, *arguments):
    assert main(["plot", *map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ensemble-decode: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize("name", ["weights.gif", "weights", "png"])
def test_an_unknown_suffix(saved, tmp_path, capsys, name):
    err = refused(capsys, saved, "-o", tmp_path / name)
    assert f"output must end in .png, .svg, .pdf, got {tmp_path / name}" in err


@pytest.mark.parametrize("name", ["nowhere/weights.png", "folder.png", "full.png"])
def test_an_output_that_cannot_be_written(saved, tmp_path, capsys, name):
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "full.png").symlink_to("/dev/full")
    err = refused(capsys, saved, "-o", tmp_path / name)
    assert f"output must be a file that can be written, got {tmp_path / name}: " in err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not json", "trace must be a file that Trace.save wrote, got"),
        (b"\xff\xfe\xfa", "trace must be a file that Trace.save wrote, got"),
        (b"[]", "trace must be a dict, got list"),
        (b'{"text": "a whole result"}', "trace must have the fields of a Trace, got 'text'"),
        (
            b'{"method": "specem", "members": ["a"], "options": {}, "rounds": []}',
            "trace must have at least one round, got none",
        ),
    ],
)
def test_a_file_that_is_no_trace(tmp_path, capsys, content, message):
    (tmp_path / "trace.json").write_bytes(content)
    err = refused(capsys, tmp_path / "trace.json", "-o", tmp_path / "w.png")
    assert message in err
    assert str(tmp_path / "trace.json") in err
    assert not (tmp_path / "w.png").exists()


@pytest.mark.parametrize("name", ["none.json", "."])
def test_a_trace_that_cannot_be_read(tmp_path, capsys, name):
    err = refused(capsys, tmp_path / name, "-o", tmp_path / "w.png")
    assert f"trace must be a file that can be read, got {tmp_path / name}" in err


def test_without_the_extra_one_line_says_what_to_install(saved, tmp_path):
    program = (
        "import sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'matplotlib':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Hide())\n"
        "from ensemble_decoding.cli import main\n"
        f"sys.exit(main(['plot', {str(saved)!r}, '-o', {str(tmp_path / 'w.png')!r}]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "ensemble-decode: matplotlib is not installed: "
        "pip install 'ensemble-kernels[plot]' brings it\n"
    )


def test_a_plot_needs_neither_torch_nor_pyplot(saved, tmp_path):
    program = (
        "import sys\n"
        "from ensemble_decoding.cli import main\n"
        f"assert main(['plot', {str(saved)!r}, '-o', {str(tmp_path / 'w.png')!r}]) == 0\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'matplotlib.pyplot')))\n"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


@pytest.mark.parametrize("method", ["safe", "cosd"])
def test_methods_without_winners_are_refused_by_name(method, saved, tmp_path, capsys):
    written = json.loads(saved.read_text())
    saved.write_text(json.dumps({**written, "method": method}))
    assert main(["plot", str(saved), "-o", str(tmp_path / "w.png")]) == 2
    assert f"whose drafts compete, got {method}" in capsys.readouterr().err
