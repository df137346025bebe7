"""A progress line on stderr while something takes long; nothing if it is quick or stderr is no terminal.

Stage: render. rich draws it in a separate thread. It writes only to stderr and only if that is a terminal, so
none of it ends up in a pipe or a log.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rankmem_cli.show.units import safe_text

AFTER_S: Final = 0.7
"""Anything quicker needs no line, which would only flicker."""

Update = Callable[[str], None]
"""Sets the text of the line."""


@contextmanager
def show_progress(text: str) -> Iterator[Update]:
    """Shows ``text`` with a spinner after AFTER_S; yields a function that changes the text."""
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
