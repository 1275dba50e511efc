"""The pictures of calibrations and sweeps."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .calibration import Bin, Calibration
    from .rule_sweep import Sweep

_INK, _BAR = "#52514e", "#2a78d6"


def save_reliability(calibration: Calibration, path: str | PathLike[str]) -> None:
    """Draws the reliability diagrams before and after the temperature beside each other."""
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    figure.suptitle(
        f"{calibration.member}: temperature {calibration.temperature:.3f}, "
        f"{calibration.tokens} tokens"
    )
    before, after = figure.subplots(1, 2, sharey=True)
    kinds = (
        (before, "before", calibration.bins_before, calibration.ece_before),
        (after, "after", calibration.bins_after, calibration.ece_after),
    )
    for axes, title, bins, error in kinds:
        _draw_bins(axes, bins)
        axes.set_title(f"{title}: expected calibration error {error:.3f}")
        axes.set_xlabel("probability of the likeliest token")
    before.set_ylabel("share of right predictions")
    _save(figure, path)


def _draw_bins(axes: Axes, bins: list[Bin]) -> None:
    width = 1 / len(bins)
    for index, one in enumerate(bins):
        if one.count:
            axes.bar(
                (index + 0.5) * width, one.accuracy, width * 0.9, color=_BAR, edgecolor="white"
            )
    axes.plot([0, 1], [0, 1], color=_INK, linestyle="--", linewidth=1)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)


def save_sweep(sweep: Sweep, path: str | PathLike[str]) -> None:
    """Draws, over alpha and beta, how many tokens are replaced and the log-likelihood."""
    alphas = sorted({point.alpha for point in sweep.points})
    betas = sorted({point.beta for point in sweep.points})
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    panels = figure.subplots(1, 2)
    kinds = (
        ("tokens replaced", "{:.0f}", lambda point: point.replacements),
        ("log-likelihood, nats a byte", "{:.3f}", lambda point: point.log_likelihood),
    )
    for axes, (title, form, value) in zip(panels, kinds, strict=True):
        grid = [[0.0] * len(betas) for _ in alphas]
        for point in sweep.points:
            grid[alphas.index(point.alpha)][betas.index(point.beta)] = float(value(point))
        image = axes.imshow(grid, aspect="auto", origin="lower", cmap="viridis")
        middle = (min(map(min, grid)) + max(map(max, grid))) / 2
        for row, values in enumerate(grid):
            for column, shown in enumerate(values):
                color = "black" if shown > middle else "white"
                axes.text(column, row, form.format(shown), ha="center", va="center", color=color)
        axes.set_xticks(range(len(betas)), [f"{beta:g}" for beta in betas])
        axes.set_yticks(range(len(alphas)), [f"{alpha:g}" for alpha in alphas])
        axes.set_xlabel("beta")
        axes.set_ylabel("alpha")
        axes.set_title(title)
        figure.colorbar(image, ax=axes)
    _save(figure, path)


def check_path(path: str | PathLike[str]) -> None:
    """Checks that a picture can be of the kind that its name says."""
    if Path(path).suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"path must end in .png, .svg or .pdf, got {path}")


def _save(figure: Figure, path: str | PathLike[str]) -> None:
    check_path(path)
    figure.savefig(path, dpi=150)
