"""What the command line prints: the text of a run, its summary, and errors in one line. As in
`cli`, only the standard library is imported here."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .generation import DecodingRun


def fail(cause: object, code: int = 2) -> int:
    """Prints an error; returns the exit status."""
    print(f"ensemble-decode: {' '.join(str(cause).split())}", file=sys.stderr)
    return code


def print_run(run: DecodingRun, options: argparse.Namespace) -> int:
    """Decodes, prints and saves what `--stream`, `--json` and `--trace` ask for; returns the exit
    status. What was generated before an error or Ctrl-C is printed as well."""
    from .trace import DecodingError, to_json

    code = 0
    try:
        for piece in run:
            if options.stream and not options.json:
                print(piece.text, end="", flush=True)
    except DecodingError as error:
        code = fail(error, code=1)
    except KeyboardInterrupt:
        code = fail("interrupted", code=130)
    output = run.output
    if options.json:
        print(to_json(output))
    else:
        print("" if options.stream else output.text)
    if options.trace is not None:
        output.rounds.save(options.trace)
    print(_summary(run), file=sys.stderr)
    return code


def _summary(run: DecodingRun) -> str:
    output = run.output
    tokens = len(output.token_ids[0])
    won = ", ".join(
        f"{name} {sum(j in r.candidates[r.winner].drafted_by for r in output.rounds)}"
        for j, name in enumerate(output.rounds.members)
    )
    outcome = f"won: {won}"
    if output.ensembled_share is not None:
        outcome = f"ensembled: {output.ensembled_share:.0%}, own best token: {won}"
    memory = ", ".join(
        f"{usage.member} {(usage.model_bytes + usage.cache_bytes) / 1e9:.2f} GB"
        for usage in output.usage
    )
    return (
        f"{tokens} tokens in {output.seconds:.1f} s ({tokens / max(output.seconds, 1e-9):.1f} "
        f"tokens/s), {len(output.rounds)} rounds; {outcome}; memory: {memory}; "
        f"finished: {output.finish_reason}"
    )
