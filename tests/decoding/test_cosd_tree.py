"""The trees of CoSD: trained, as data, in files that are none."""

import json
import random
import subprocess
import sys

import numpy
import pytest
from sklearn.tree import DecisionTreeClassifier

from ensemble_decoding.examples import Example
from ensemble_decoding.tree import Node, Tree, fit_tree

GRID = [(d / 21, a / 21) for d in range(22) for a in range(22)]


def separable(count=3000, seed=0):
    """Replaced by the rule of alpha 0.5 and an assistant above 0.25, which a tree can say."""
    chance = random.Random(seed)
    pairs = [(chance.random(), chance.random()) for _ in range(count)]
    return [Example(d, a, d < 0.5 and a > 0.25) for d, a in pairs]


def noisy(count=800, seed=1):
    chance = random.Random(seed)
    pairs = [(chance.random(), chance.random()) for _ in range(count)]
    return [Example(d, a, chance.random() < a * (1 - d)) for d, a in pairs]


def test_a_tree_on_separable_data_is_the_rule():
    tree = fit_tree(separable())
    assert tree.accuracy > 0.995
    for draft, assistant in GRID:
        if abs(draft - 0.5) > 0.01 and abs(assistant - 0.25) > 0.01:
            assert tree.replaces(draft, assistant) == (draft < 0.5 and assistant > 0.25)


PARAMETERS = [{}, {"max_depth": None}, {"max_leaf_nodes": 7}, {"class_weight": "balanced"}]


@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
def test_a_tree_says_what_sklearn_says(parameters):
    examples = noisy()
    tree = fit_tree(examples, held_out=0, seed=3, **parameters)
    assert tree.accuracy is None
    classifier = DecisionTreeClassifier(**{"max_depth": 4, "random_state": 3, **parameters})
    values = [one[:2] for one in examples]
    classifier.fit(values, [one.replace for one in examples])
    asked = [*GRID, *values]
    expected = classifier.predict(asked).tolist()
    assert [tree.replaces(*pair) for pair in asked] == expected
    assert len(set(expected)) == 2
    assert tree.nodes[0].examples == len(examples)


def test_the_same_seed_gives_the_same_tree():
    assert fit_tree(noisy(), seed=4) == fit_tree(noisy(), seed=4)
    assert fit_tree(noisy(), seed=4).accuracy != fit_tree(noisy(), seed=5).accuracy


def test_plain_tuples_and_numbers_will_do():
    examples = [(numpy.float32(d), numpy.float32(a), numpy.bool_(r)) for d, a, r in noisy(60)]
    assert isinstance(fit_tree(examples).nodes[0].threshold, float)


def test_a_rare_kind_is_still_learned_from():
    examples = [Example(0.9, 0.5, False)] * 9 + [Example(0.1, 0.5, True)]
    assert fit_tree(examples, held_out=0).replaces(0.1, 0.5)
    assert fit_tree(examples * 2, held_out=0.2).replaces(0.1, 0.5)


BAD = [
    ([Example(0.5, 0.5, True)] * 9, {}, ValueError, "of both kinds.* 9 to replace and 0 to keep"),
    ([Example(0.5, 0.5, False)] * 9, {}, ValueError, "of both kinds.* 0 to replace and 9 to keep"),
    ([], {}, ValueError, "examples must be of both kinds, .* got 0 to replace and 0"),
    (noisy(20), {"held_out": 0.01}, ValueError, "examples must be enough to hold out 1%, got 20"),
    (noisy(9), {"held_out": 1.0}, ValueError, "held_out must be from 0 to below 1, got 1.0"),
    (noisy(9), {"held_out": -0.1}, ValueError, "held_out must be from 0 to below 1, got -0.1"),
    (noisy(9), {"held_out": "0.2"}, TypeError, "held_out must be a number, got str"),
    (noisy(9), {"held_out": True}, TypeError, "held_out must be a number, got bool"),
    (noisy(9), {"seed": -1}, ValueError, "seed must be from 0 to 4294967295, got -1"),
    (noisy(9), {"seed": 0.5}, TypeError, "seed must be an int, got float"),
    (noisy(9), {"max_depth": 0}, ValueError, "max_depth must be at least 1, got 0"),
    (noisy(9), {"max_depth": "3"}, TypeError, "max_depth must be an int, got str"),
    ([("a", 0.5, True)], {}, TypeError, r"examples\[0\] must be two probabilities and .* got"),
    ([(0.5, True)], {}, TypeError, r"examples\[0\] must be two probabilities and .* got"),
    ([(0.5, 1.5, True)], {}, ValueError, r"examples\[0\] must have probabilities from 0 to 1, got"),
    ([(0.5, float("nan"), True)], {}, ValueError, r"examples\[0\] must have probabilities"),
    (5, {}, TypeError, "examples must be a list of examples, got int"),
]


@pytest.mark.parametrize(
    ("examples", "options", "error", "message"), BAD, ids=[message for *_, message in BAD]
)
def test_bad_examples_are_one_sentence(examples, options, error, message):
    with pytest.raises(error, match=message) as caught:
        fit_tree(examples, **options)
    assert "\n" not in str(caught.value)


def test_a_file_gives_the_tree_back(tmp_path):
    tree = fit_tree(noisy())
    tree.save(tmp_path / "tree.json")
    assert Tree.load(tmp_path / "tree.json") == tree
    shown = str(tree).splitlines()
    assert shown[0] == f"draft_probability <= {tree.nodes[0].threshold:.4g}" or shown[0].startswith(
        "assistant_probability <= "
    )
    leaves = [line for line in shown if "examples)" in line]
    assert len(leaves) == sum(node.feature is None for node in tree.nodes)


FORMAT = "ensemble-decoding CoSD tree 1"
LEAF = {"examples": 1, "replace": True}
SPLIT = {"examples": 2, "feature": "draft_probability", "threshold": 0.5, "below": 1, "above": 2}
FILES = {
    "nothing": ("", "Expecting value"),
    "no JSON": ("{", "Expecting"),
    "no bytes of text": (b"\xff\xfe\x00", "utf-8"),
    "a list": ("[1]", "its format must be 'ensemble-decoding CoSD tree 1', got None"),
    "another format": ({"format": "ensemble-decoding calibration 1"}, "got 'ensemble-decoding c"),
    "no nodes": ({"format": FORMAT}, "tree must have a field 'nodes', got none"),
    "empty": ({"nodes": []}, "tree.nodes must hold at least one node, got none"),
    "more": ({"nodes": [LEAF], "depth": 1}, "must have the fields of a Tree, got 'depth'"),
    "a leaf of nothing": ({"nodes": [{"examples": 1}]}, r"nodes\[0\] must have a feature or say"),
    "no count": ({"nodes": [{"replace": True}]}, r"nodes\[0\] must have a field 'examples'"),
    "no bool": ({"nodes": [{**LEAF, "replace": 1}]}, r"nodes\[0\].replace must be a bool, got 1"),
    "feature": (
        {"nodes": [{**SPLIT, "feature": "x"}, LEAF, LEAF]},
        r"nodes\[0\].feature must be one of .* got 'x'",
    ),
    "threshold": (
        {"nodes": [{**SPLIT, "threshold": None}, LEAF, LEAF]},
        r"nodes\[0\].threshold must be a number, got None",
    ),
    "an endless one": (
        {"nodes": [{**SPLIT, "threshold": float("inf")}, LEAF, LEAF]},
        r"nodes\[0\].threshold must be finite, got inf",
    ),
    "a huge one": (
        {"nodes": [{**SPLIT, "threshold": 10**400}, LEAF, LEAF]},
        r"nodes\[0\].threshold must be finite, got 1000",
    ),
    "no child": ({"nodes": [SPLIT, LEAF]}, r"nodes\[0\] must have two children behind it, got 2"),
    "one child": (
        {"nodes": [{**SPLIT, "above": None}, LEAF, LEAF]},
        r"nodes\[0\] must have two children behind it, got None",
    ),
    "a cycle": (
        {"nodes": [SPLIT, {**SPLIT, "below": 0}, LEAF]},
        r"nodes\[1\] must have two children behind it, got 0",
    ),
    "itself": ({"nodes": [{**SPLIT, "below": 0}, LEAF, LEAF]}, "children behind it, got 0"),
    "negative": ({"nodes": [{**SPLIT, "below": -1}, LEAF, LEAF]}, "children behind it, got -1"),
    "deep": ('{"format": ' + "[" * 100_000, "recursion"),
}


@pytest.mark.parametrize("name", FILES)
def test_files_that_hold_no_tree(name, tmp_path):
    content, message = FILES[name]
    if isinstance(content, dict):
        content = json.dumps({"format": FORMAT, **content})
    path = tmp_path / "tree.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message) as caught:
        Tree.load(path)
    assert str(caught.value).startswith(f"path must be a tree that Tree.save wrote, got {path}: ")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        Tree.load(tmp_path / "nowhere.json")


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([], "tree.nodes must hold at least one node, got none"),
        ([Node(1, None, "draft_probability", 0.5, 0, 0)], "two children behind it, got 0"),
    ],
)
def test_a_tree_made_by_hand_is_checked_too(nodes, message):
    with pytest.raises(ValueError, match=message):
        Tree(nodes)


def test_a_tree_is_evaluated_without_sklearn(tmp_path):
    tree = fit_tree(noisy())
    tree.save(tmp_path / "tree.json")
    program = (
        "import sys\n"
        "sys.modules['sklearn'] = None\n"
        "from ensemble_decoding import CoSD\n"
        "from ensemble_decoding.tree import Tree, fit_tree\n"
        "tree = Tree.load(sys.argv[1])\n"
        "print([tree.replaces(d / 9, a / 9) for d in range(10) for a in range(10)])\n"
        "try:\n"
        "    fit_tree([(0.1, 0.2, True), (0.3, 0.4, False)])\n"
        "except ModuleNotFoundError as error:\n"
        "    print(type(error).__name__)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "tree.json")],
        capture_output=True,
        text=True,
        check=True,
    )
    said, error = ran.stdout.splitlines()
    assert said == str([tree.replaces(d / 9, a / 9) for d in range(10) for a in range(10)])
    assert error == "ModuleNotFoundError"
