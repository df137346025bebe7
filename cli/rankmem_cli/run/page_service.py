"""``rankmem page``: opens the target, prints the link, serves until a signal.

Stage: the page's process, main thread. The link is the only line on stdout, so that a program can read it;
it is in no log.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import webbrowser
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from rankmem_cli.show.render import note
from rankmem_cli.show.session import open_queries
from rankmem_cli.show.units import safe_text

if TYPE_CHECKING:
    from rankmem_aggregator.page.config import PageConfig
    from rankmem_aggregator.query.queries import Queries
    from rankmem_cli.args.options import Target


def serve_page(
    target: Target, config: PageConfig, session: str | None, *, open_browser: bool, editor_url: str = ""
) -> None:
    """Serves the page until SIGINT or SIGTERM.

    Args:
        editor_url: an address with {file} and {line}, which the browser that is let in keeps.

    Raises:
        RankmemError: the target cannot be opened, its engine is away, or the page's address cannot be bound.
    """
    config.check()  # before what it may lack is imported
    from rankmem_aggregator import logs
    from rankmem_aggregator.page.serving import PageServer

    logs.configure()
    with contextlib.ExitStack() as until_the_end:
        opening = until_the_end.enter_context(_readers(target))
        chosen = ""
        if session is not None:
            with opening() as queries:
                chosen = f"&s={quote(queries.session_id(session), safe='')}"
        if editor_url:
            chosen += f"&editor={quote(editor_url, safe='')}"
        server = PageServer(config, opening)
        link = server.link() + chosen
        with contextlib.suppress(OSError, ValueError):  # nobody reads it: a program needs a token alone
            print(safe_text(link), flush=True)
        note(f"rankmem: the page of {target.address()} is at this link, which lets one browser in")
        note("rankmem: within ten minutes; Ctrl-C ends the page")
        if open_browser:
            _open(link, until_the_end)
        server.run()


@contextlib.contextmanager
def _readers(target: Target) -> Iterator[Callable[[], Queries]]:
    """What opens a reader of the page; all have one engine between them, which is tried at once."""
    if not isinstance(target.engine, str):
        yield lambda: open_queries(target)
        return
    from rankmem_aggregator.lake.engines import open_engine
    from rankmem_aggregator.lake.shared_engine import SharedEngine

    with contextlib.closing(SharedEngine(open_engine(target.engine))) as shared:
        note(f"rankmem: {target.engine} has {shared.workers()} workers for large questions")
        yield lambda: open_queries(replace(target, engine=shared.share()))


def _open(link: str, until_the_end: contextlib.ExitStack) -> None:
    """Has a browser open the link through a private file: a command line is seen by all users of the host."""
    number, path = tempfile.mkstemp(prefix="rankmem-page-", suffix=".html")  # mode 0600
    until_the_end.callback(Path(path).unlink, missing_ok=True)
    with os.fdopen(number, "w", encoding="utf-8") as file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0;url={link}">')
    if not webbrowser.open(Path(path).as_uri()):
        note("rankmem: there is no browser here; open the link, or forward its port: ssh -L")
