"""The decision tree of CoSD: plain data, evaluated without scikit-learn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from .token_ensemble_options import check_number
from .typed_json import from_json

FEATURES = ("draft_probability", "assistant_probability")
_FORMAT = "ensemble-decoding CoSD tree 1"


@dataclass(frozen=True)
class Node:
    """A leaf says whether to replace; another node sends what is at most `threshold` in its
    feature to the node `below`, the rest to `above`. `examples` counts those of the training that
    came by."""

    examples: int
    replace: bool | None = None
    feature: str | None = None
    threshold: float | None = None
    below: int | None = None
    above: int | None = None


@dataclass(frozen=True)
class Tree:
    """A binary decision on (the probability that the drafter gives its token, the one that the
    assistant gives its own): whether to replace the drafted token.

    Attributes:
        nodes: the root first; children stand behind their parent.
        accuracy: on the examples that were held out from the training, None without any.
    """

    nodes: list[Node]
    accuracy: float | None = None

    def __post_init__(self) -> None:
        _check_nodes(self.nodes)

    def replaces(self, draft_probability: float, assistant_probability: float) -> bool:
        """The decision."""
        values = dict(zip(FEATURES, (draft_probability, assistant_probability), strict=True))
        node = self.nodes[0]
        while node.feature is not None:
            assert node.threshold is not None
            at = node.below if values[node.feature] <= node.threshold else node.above
            assert at is not None
            node = self.nodes[at]
        return bool(node.replace)

    def __str__(self) -> str:
        return "\n".join(self._lines(0, ""))

    def _lines(self, index: int, indent: str) -> list[str]:
        node = self.nodes[index]
        if node.feature is None:
            decision = "replace" if node.replace else "keep"
            return [f"{indent}{decision} ({node.examples} examples)"]
        assert node.below is not None
        assert node.above is not None
        return [
            f"{indent}{node.feature} <= {node.threshold:.4g}",
            *self._lines(node.below, indent + "    "),
            f"{indent}{node.feature} >  {node.threshold:.4g}",
            *self._lines(node.above, indent + "    "),
        ]

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the tree as JSON."""
        written = {"format": _FORMAT, **asdict(self)}
        Path(path).write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Tree:
        """Reads what `save` wrote.

        Raises:
            OSError: the file cannot be read.
            ValueError: it holds no such tree; says what is wrong where.
        """
        try:
            read = json.loads(Path(path).read_text(encoding="utf-8"))
            found = read.pop("format", None) if isinstance(read, dict) else None
            if found != _FORMAT:
                raise ValueError(f"its format must be {_FORMAT!r}, got {found!r}")
            tree: Tree = from_json(read, cls, "tree")
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"path must be a tree that Tree.save wrote, got {path}: {error}"
            ) from error
        return tree


def _check_nodes(nodes: Sequence[Node]) -> None:
    if not nodes:
        raise ValueError("tree.nodes must hold at least one node, got none")
    for index, node in enumerate(nodes):
        name = f"tree.nodes[{index}]"
        if node.feature is None:
            if node.replace is None:
                raise ValueError(f"{name} must have a feature or say whether to replace, got none")
            continue
        if node.feature not in FEATURES:
            raise ValueError(f"{name}.feature must be one of {FEATURES}, got {node.feature!r}")
        if node.threshold is None:
            raise ValueError(f"{name}.threshold must be a number, got None")
        for child in (node.below, node.above):
            # Only forwards, so that every walk ends.
            if child is None or not index < child < len(nodes):
                raise ValueError(f"{name} must have two children behind it, got {child}")


def fit_tree(
    examples: Sequence[Any], *, held_out: float = 0.2, seed: int = 0, **sklearn_params: Any
) -> Tree:
    """Trains a tree.

    Args:
        examples: from `collect_examples`: `Example`s, or (draft probability, assistant probability,
            replace) each.
        held_out: the share of the examples that the accuracy is measured on; 0 trains on all.
        seed: of the choice of those, and of the training.
        **sklearn_params: for `sklearn.tree.DecisionTreeClassifier`; by default `max_depth=4`.

    Raises:
        ModuleNotFoundError: scikit-learn is not installed (the extra `tree` brings it).
        TypeError, ValueError: naming the argument, what was expected and what came.
    """
    from sklearn.model_selection import train_test_split
    from sklearn.tree import DecisionTreeClassifier

    check_training(held_out=held_out, seed=seed)
    checked = [_checked_example(f"examples[{i}]", one) for i, one in enumerate(examples)]
    values, labels = [one[:2] for one in checked], [one[2] for one in checked]
    replaced = sum(labels)
    if replaced in (0, len(labels)):
        raise ValueError(
            f"examples must be of both kinds, replace and keep, got {replaced} to replace and "
            f"{len(labels) - replaced} to keep"
        )
    classifier = DecisionTreeClassifier(**{"max_depth": 4, "random_state": seed, **sklearn_params})
    kept, tested = list(range(len(labels))), list[int]()
    if held_out:
        kinds = labels if min(replaced, len(labels) - replaced) >= 2 else None
        try:
            kept, tested = train_test_split(
                kept, test_size=held_out, random_state=seed, stratify=kinds
            )
        except ValueError as error:
            raise ValueError(
                f"examples must be enough to hold out {held_out:.0%}, got {len(labels)}: {error}"
            ) from error
    classifier.fit([values[i] for i in kept], [labels[i] for i in kept])
    tree = Tree(_nodes(classifier))
    if tested:
        right = sum(tree.replaces(*values[i]) == labels[i] for i in tested)
        tree = Tree(tree.nodes, right / len(tested))
    return tree


def check_training(*, held_out: Any, seed: Any, max_depth: Any = None) -> None:
    """Checks how a tree is to be trained, also before there are examples.

    Raises:
        TypeError, ValueError: naming the argument, what was expected and what came.
    """
    check_number("held_out", held_out)
    if not 0 <= held_out < 1:
        raise ValueError(f"held_out must be from 0 to below 1, got {held_out}")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed must be an int, got {type(seed).__name__}")
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed must be from 0 to {2**32 - 1}, got {seed}")
    if max_depth is not None and max_depth < 1:
        raise ValueError(f"max_depth must be at least 1, got {max_depth}")


def _checked_example(name: str, example: Any) -> tuple[float, float, bool]:
    try:
        draft, assistant, replace = example
        probabilities = float(draft), float(assistant)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name} must be a draft probability, an assistant probability and whether to replace, "
            f"got {example!r}"
        ) from error
    if not all(0 <= probability <= 1 for probability in probabilities):
        raise ValueError(f"{name} must have probabilities from 0 to 1, got {example!r}")
    return *probabilities, bool(replace)


def _nodes(classifier: Any) -> list[Node]:
    fitted, classes = classifier.tree_, list(classifier.classes_)
    nodes = []
    for index in range(fitted.node_count):
        examples = int(fitted.n_node_samples[index])
        below, above = int(fitted.children_left[index]), int(fitted.children_right[index])
        if below < 0:
            best = classes[int(fitted.value[index][0].argmax())]
            nodes.append(Node(examples, replace=bool(best)))
        else:
            feature = FEATURES[int(fitted.feature[index])]
            threshold = float(fitted.threshold[index])
            nodes.append(Node(examples, None, feature, threshold, below, above))
    return nodes
