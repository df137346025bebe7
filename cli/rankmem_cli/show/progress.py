"""A moving line on stderr while something takes long; nothing where it does not, or where nobody looks.

Stage: render. Runs beside the main thread (rich draws it in a thread of its own). It writes to stderr
alone and only if that is a terminal, so that a pipe or a log never gets any of it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rankmem_cli.show.units import safe_text

AFTER_S: Final = 0.7
"""What is done sooner needs no line: it would only flicker."""

Update = Callable[[str], None]
"""Sets the text of the line."""


@contextmanager
def show_progress(text: str) -> Iterator[Update]:
    """Shows ``text`` with a spinner once the block has taken long; gives what changes the text."""
    if not sys.stderr.isatty():
        yield lambda new_text: None
        return
    from rich.console import Console

    status = Console(stderr=True, markup=False).status(safe_text(text))
    timer = threading.Timer(AFTER_S, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda new_text: status.update(safe_text(new_text))
    finally:
        timer.cancel()
        timer.join()  # it may be starting the line at this very moment
        status.stop()
