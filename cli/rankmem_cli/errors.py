"""The one door through which errors leave: text on stderr and an exit code.

Stage: the command line's outermost layer. In comes whatever a verb raised, out goes
``Error: …`` and ``Try: …`` and 1 (2 where the command line itself was wrong). One of the three places
where ``except Exception`` may stand.
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
    """Runs the command and returns the exit code; says what went wrong on stderr.

    Args:
        command: the application; may raise SystemExit, whose code is passed on.
        verbose: whether tracebacks are wanted; asked once something went wrong, when the options are read.
    """
    try:
        command()
    except RankmemError as error:
        _say(error.message, error.hint, verbose=verbose())
        return FAILED
    except Exception as error:  # noqa: BLE001 the door: a defect of ours becomes a line and an exit code
        message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        _say(
            f"unexpected: {message}",
            "rankmem -v … shows where it happened; please report it",
            verbose=verbose(),
        )
        return FAILED
    return 0


def _say(message: str, hint: str, *, verbose: bool) -> None:
    if verbose:
        traceback.print_exc()
    first, *more = [safe_text(line) for line in message.splitlines() if line.strip()] or [""]
    print(f"Error: {first}", file=sys.stderr)
    for line in more:  # DuckDB points at the place in the statement
        print(f"  {line}", file=sys.stderr)
    if hint:
        print(f"Try: {safe_text(hint)}", file=sys.stderr)
