"""The error boundary: an exception becomes text on stderr and an exit code.

Stage: the command line's outermost layer. In: what a verb raised. Out: ``Error: …``, ``Try: …`` and exit code
1 (2 where the command line itself was wrong). One of the three places where ``except Exception`` is allowed.
Usage errors (exit 2), Ctrl-C (130) and a closed stdout are typer's own.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Final

from rankmem_cli.show.units import safe_text
from rankmem_protos.errors import RankmemError

FAILED: Final = 1


def boundary(command: Callable[[], object], *, verbose: Callable[[], bool]) -> int:
    """Runs the command and returns its exit code; reports an error on stderr.

    Args:
        command: the application; may raise SystemExit, whose code is passed on.
        verbose: whether tracebacks are wanted; called after a failure, when the options have been read.
    """
    try:
        command()
    except RankmemError as error:
        _report(error.message, error.hint, verbose=verbose())
        return FAILED
    except Exception as error:  # noqa: BLE001 the boundary: a defect of ours becomes a line and an exit code
        message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        _report(
            f"unexpected: {message}",
            "rankmem -v … for a traceback; please report this",
            verbose=verbose(),
        )
        return FAILED
    return 0


def _report(message: str, hint: str, *, verbose: bool) -> None:
    if verbose:
        traceback.print_exc()
    first, *more = [safe_text(line) for line in message.splitlines() if line.strip()] or [""]
    print(f"Error: {first}", file=sys.stderr)
    for line in more:  # DuckDB marks the position in the statement
        print(f"  {line}", file=sys.stderr)
    if hint:
        print(f"Try: {safe_text(hint)}", file=sys.stderr)
