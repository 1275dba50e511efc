"""What the command line prints: the text of a run, its summary, and errors in one line. As in
`cli`, only the standard library is imported here."""

from __future__ import annotations

import argparse
import io
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .generation import DecodingRun
    from .output import EnsembleOutput


# The exit status where nobody reads the output any more, as of a program that SIGPIPE ended.
READER_LEFT = 141


def fail(cause: object, code: int = 2) -> int:
    """Prints an error; returns the exit status."""
    print(f"ensemble-decode: {' '.join(str(cause).split())}", file=sys.stderr)
    return code


def print_what_there_is() -> None:
    """A character that standard output has no bytes for becomes a question mark: what was
    generated must not be lost by it."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def print_run(run: DecodingRun, options: argparse.Namespace) -> int:
    """Decodes, prints and saves what `--stream`, `--json` and `--trace` ask for; returns the exit
    status. What was generated before an error, Ctrl-C or the end of a pipe is kept as well."""
    try:
        code = _print_text(run, options)
    except BrokenPipeError:
        run.close()
        code = READER_LEFT
    if options.trace is not None:
        run.output.rounds.save(options.trace)
    if code != READER_LEFT:
        print(_summary(run), file=sys.stderr)
    return code


def _print_text(run: DecodingRun, options: argparse.Namespace) -> int:
    from .output import DecodingError

    code = 0
    try:
        for piece in run:
            if options.stream and not options.json:
                print(piece.text, end="", flush=True)
    except DecodingError as error:
        code = fail(error, code=1)
    except KeyboardInterrupt:
        code = fail("interrupted", code=130)
    if options.json:
        print(_json(run.output), flush=True)
    else:
        print("" if options.stream else run.output.text, flush=True)
    return code


def _json(output: EnsembleOutput) -> str:
    """JSON can write every character in ASCII, so that none is replaced."""
    from .typed_json import to_json

    written = to_json(output)
    try:
        written.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return to_json(output, ensure_ascii=True)
    return written


def _summary(run: DecodingRun) -> str:
    output = run.output
    tokens = len(output.token_ids[0])
    memory = ", ".join(
        f"{usage.member} {(usage.model_bytes + usage.cache_bytes) / 1e9:.2f} GB"
        for usage in output.usage
    )
    full = f" (the context of {output.full_context} is full)" if output.full_context else ""
    return (
        f"{tokens} tokens in {output.seconds:.1f} s ({tokens / max(output.seconds, 1e-9):.1f} "
        f"tokens/s), {len(output.rounds)} rounds; {_outcome(output)}; memory: {memory}; "
        f"finished: {output.finish_reason}{full}"
    )


def _outcome(output: EnsembleOutput) -> str:
    """What the method made of its rounds."""
    decisions = [decision for round_ in output.rounds for decision in round_.decisions]
    if decisions:
        replaced = sum(
            (one.chosen, one.chosen_end) != (one.drafted, one.drafted_end) for one in decisions
        )
        outcome = f"replaced: {replaced} of {len(decisions)} drafted tokens"
        if output.ensembled_share is None:
            return outcome
        return f"ensembled: {output.ensembled_share:.0%}, {outcome}"
    won = ", ".join(
        f"{name} {sum(j in r.candidates[r.winner].drafted_by for r in output.rounds)}"
        for j, name in enumerate(output.rounds.members)
    )
    if output.ensembled_share is not None:
        return f"ensembled: {output.ensembled_share:.0%}, own best token: {won}"
    return f"won: {won}"
