"""One round of SpecEM under `torch.profiler`, as a picture, a table and a trace:
python -m benchmarks.trace_round [--picture FILE] [--trace FILE]

Two small real models, the round in the middle of an answer. The trace opens in Perfetto or
chrome://tracing.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from torch.profiler import ProfilerActivity, profile

from benchmarks.output_file import output_file
from ensemble_decoding import Member, SpecEM
from ensemble_decoding.demo_models import model_path

STAGES = ("draft", "encode", "verify", "commit")
COLORS = {"draft": "#0072B2", "encode": "#E69F00", "verify": "#009E73", "commit": "#D55E00"}
# What is drawn below the stages, and by which events.
LANES = {
    "forward passes": ("forward",),
    "matrix products": ("aten::mm", "aten::addmm", "aten::bmm"),
    "attention of drafts": ("aten::scaled_dot_product_attention",),
    "segment_attention": ("ensemble_kernels::segment_attention",),
    "token_statistics": ("ensemble_kernels::token_statistics",),
    "compact_kv_": ("ensemble_kernels::compact_kv_",),
}


class Span(NamedTuple):
    """An event, in milliseconds from the beginning of the round."""

    name: str
    begin: float
    end: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--picture", type=output_file, metavar="FILE", help=".png, .svg or .pdf")
    add("--trace", type=output_file, metavar="FILE", help="the profiler's own, as JSON")
    options = parser.parse_args()
    if options.picture and not options.picture.endswith((".png", ".svg", ".pdf")):
        parser.error(f"--picture must end in .png, .svg or .pdf, got {options.picture}")
    spans, profiled = traced_round()
    print(table(spans))
    if options.picture:
        picture(spans).savefig(options.picture, dpi=150)
    if options.trace:
        profiled.export_chrome_trace(options.trace)


def traced_round() -> tuple[list[Span], Any]:
    """The third round of an answer, and what the profiler saw."""
    members = [Member.from_pretrained(model_path(n), name=n) for n in ("smollm2", "gemma3")]
    run = SpecEM(members).stream("The history of the moon begins", max_new_tokens=64)
    next(run)
    next(run)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        next(run)
    run.close()
    events = list(profiled.events())
    start = next(e.time_range.start for e in events if e.name == "round")
    wanted = {*STAGES, "round", *(name for names in LANES.values() for name in names)}
    spans = [
        Span(e.name, (e.time_range.start - start) / 1e3, (e.time_range.end - start) / 1e3)
        for e in events
        if e.name in wanted
    ]
    return sorted(spans, key=lambda span: span.begin), profiled


def table(spans: list[Span]) -> str:
    """Milliseconds of each lane in each stage."""
    stages = {span.name: span for span in spans if span.name in STAGES}
    sums: dict[tuple[str, str], float] = defaultdict(float)
    for lane, names in LANES.items():
        for span in spans:
            for stage, whole in stages.items():
                if span.name in names and whole.begin <= span.begin < whole.end:
                    sums[lane, stage] += span.end - span.begin
    lines = [f"{'ms':22}" + "".join(f"{stage:>10}" for stage in stages)]
    lines.append(f"{'the stage':22}" + "".join(f"{s.end - s.begin:10.2f}" for s in stages.values()))
    for lane in LANES:
        lines.append(f"{lane:22}" + "".join(f"{sums[lane, stage]:10.2f}" for stage in stages))
    return "\n".join(lines)


def picture(spans: list[Span]) -> Figure:
    """Stages above, below a lane for each kind of work."""
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    axes = figure.subplots()
    for span in spans:
        if span.name in STAGES:
            axes.broken_barh(
                [(span.begin, span.end - span.begin)], (-0.4, 0.8), color=COLORS[span.name]
            )
            if span.end - span.begin > 5:
                middle = (span.begin + span.end) / 2
                axes.text(middle, 0, span.name, color="white", ha="center", va="center")
    for place, names in enumerate(LANES.values(), 1):
        bars = [(s.begin, max(s.end - s.begin, 0.05)) for s in spans if s.name in names]
        axes.broken_barh(bars, (-place - 0.35, 0.7), color="#52514e")
    axes.set_yticks(range(0, -len(LANES) - 1, -1), ["stages", *LANES])
    axes.set_xlabel("milliseconds of the round")
    axes.set_xlim(left=0)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    main()
