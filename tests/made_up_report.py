"""Made-up figures, as a benchmark's report has them, and what their text says."""

import re

STAGES = ("prompt", "draft", "verify", "align", "mix", "commit", "tokenizers", "Python")


def row(case, alternative, median=100.0, ratio=1.0, *, ours=False, width=0.05, **more):
    return {
        "case": case,
        "alternative": alternative,
        "ours": ours,
        "floor_us": 20.0,
        "bound": "memory",
        "in_cache": False,
        "load": 1.5,
        "rounds": 50,
        "median_us": median,
        "iqr_us": 2 * width * median,
        "quartiles_us": [median * (1 - width), median * (1 + width)],
        "floor_share": 20.0 / median,
        "ratio": ratio,
        "ratio_quartiles": [1.0, 1.0] if ours else [ratio * (1 - width), ratio * (1 + width)],
        "match": "1e-7 of the largest",
        **more,
    }


def refused(case, alternative, reason):
    figures = ("rounds", "median_us", "iqr_us", "quartiles_us", "floor_share", "ratio")
    found = row(case, alternative, refused=reason)
    return {k: v for k, v in found.items() if k not in (*figures, "ratio_quartiles", "match")}


def run(method, seconds=(8.0, 8.2, 8.4), **more):
    ours = more.get("ours", True)
    segment = {"SpecEM": 10, "SAFE": 5, "CoSD": 5, "naive SpecEM": 10, "naive CoSD": 5}.get(method)
    return {
        "method": method,
        "ours": ours,
        "models": ["smollm2", "gemma3"],
        "members": 2,
        "context": 512,
        "segment": segment,
        "new": 64,
        "dtype": "float32",
        "tokens": 64,
        "first_tokens": segment or 1,
        "seconds": list(seconds),
        "first_seconds": [s / 4 for s in seconds],
        "shares": dict.fromkeys(STAGES, 0.125) if ours else None,
        "outside": 0.013 if ours else None,
        "passes": [1.04, 0.29] if ours else None,
        "peak_mb": 1234.0,
        "load": 1.2,
        "match": "same tokens as naive" if ours else None,
        "failure": None,
        **more,
    }


def alone(model, seconds=(4.0, 4.1, 4.2), **more):
    models = {"models": [model], "members": 1, "ours": False}
    return run(f"generate: {model}", seconds, **models, **more)


def made_up():
    """A report with everything in it once: sweeps, peers, a failure, a refusal, a busy moment."""
    runs = []
    for dtype, speed in (("float32", 1.0), ("bfloat16", 0.4)):
        for place, method in enumerate(("SpecEM", "SAFE", "CoSD", "TokenEnsemble")):
            for context in (512, 2048, 8192):
                base = speed * (8 + place) * (1 + context / 4096)
                times = (base, base * 1.02, base * 1.05)
                runs.append(run(method, times, dtype=dtype, context=context))
            for count in (3, 4):
                times = [speed * (8 + place) * count / 2]
                models = ["smollm2", "gemma3", "smollm2", "gemma3"][:count]
                runs.append(run(method, times, dtype=dtype, members=count, models=models))
        runs.append(run("SpecEM", [speed * 9], dtype=dtype, segment=5))
        for context in (512, 2048, 8192):
            runs.append(alone("smollm2", [speed * 4], dtype=dtype, context=context))
            runs.append(alone("gemma3", [speed * 5], dtype=dtype, context=context))
        runs.append(run("naive SpecEM", [speed * 30], dtype=dtype, ours=False))
        runs.append(run("naive CoSD", [speed * 25], dtype=dtype, ours=False))
        runs.append(run("naive union", [speed * 20], dtype=dtype, ours=False, new=24, tokens=24))
        runs.append(run("TokenEnsemble", [speed * 4], dtype=dtype, new=24, tokens=24))
        runs.append(run("assisted decoding", [speed * 9], dtype=dtype, ours=False, load=3.5))
    lost = {"failure": "MemoryError: a | b\nof <class 'x'>", "tokens": 0, "seconds": []}
    runs.append(run("naive SpecEM", ours=False, context=8192, **lost))
    runs.append(run("CoSD", dtype="float64", **lost))
    defaults = {
        "context": 512,
        "members": 2,
        "segment": {"SpecEM": 10, "SAFE": 5, "CoSD": 5, "TokenEnsemble": 1},
        "new": 64,
    }
    goal = {"goal": "little outside", "asked": "at most 5 %", "measured": 1.3, "unit": "%"}
    operators = {
        "token_statistics": [
            row("float32-v49152-r1", "cpu", ours=True, peak_mib=0.1),
            row("float32-v49152-r1", "softmax | gather", 240.0, 2.4, peak_mib=3.0),
            refused("float32-v49152-r1", "compiled", "inductor made no kernel"),
            row("bfloat16-v49152-r1", "cpu", 60.0, ours=True, in_cache=True, load=3.1),
            row("bfloat16-v49152-r1", "softmax | gather", 54.0, 0.9),
        ],
        "compact_kv_": [
            row("float32-n5", "cpu", ours=True),
            row("float32-n5", "index_select, copy_", 130.0, 1.3),
            row("float32-n5", "memcpy of as many bytes", 42.0, 0.42, match="not compared"),
        ],
    }
    return {
        "machine": {
            "processor": "A processor",
            "threads": 2,
            "cores": 2,
            "memory_gb": 15.6,
            "torch": "2.13.0+cpu",
            "transformers": "5.24.0",
            "python": "3.11.7",
            "platform": "Linux",
            "commit": "0123abc+",
            "date": "2026-11-30",
            "native": {"token_statistics": "cpu"},
            "library": "avx512",
        },
        "size": "quick",
        "seconds": 600.0,
        "operators": {
            "last_level_cache": 32 << 20,
            "ceilings": [
                {"threads": 1, "products": {"float32": 115.6}, "read": 41.9, "copy": 40.3},
                {"threads": 2, "products": {"float32": 234.1}, "read": 52.7, "copy": 47.4},
            ],
            "operators": operators,
        },
        "end_to_end": {
            "runs": runs,
            "goals": [{**goal, "met": True}, {**goal, "goal": "much faster", "met": False}],
            "defaults": defaults,
        },
    }


def plain(text):
    """What a reader sees: without escapes."""
    text = re.sub(r"\\(.)", r"\1", text)
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def tables(text):
    """The cells of each line of each table."""
    found, lines = [], []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            lines.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)])
        elif lines:
            found.append(lines)
            lines = []
    return found


def line_of(text, *beginning):
    """The only line of the tables that begins with these cells."""
    lines = [line[1:-1] for found in tables(text) for line in found]
    chosen = [line for line in lines if line[: len(beginning)] == list(beginning)]
    assert len(chosen) == 1, chosen
    return chosen[0]
