"""``rankmem page``: opens the target, prints the link, serves until a signal.

Stage: the page's process, main thread.
"""

from __future__ import annotations

import webbrowser
from typing import TYPE_CHECKING

from rankmem_cli.show.render import note
from rankmem_cli.show.session import open_queries

if TYPE_CHECKING:
    from rankmem_aggregator.page.serving import PageConfig
    from rankmem_cli.args.options import Target


def serve_page(target: Target, config: PageConfig, session: str | None, *, open_browser: bool) -> None:
    """Serves the page until SIGINT or SIGTERM.

    Raises:
        RankmemError: the target cannot be opened, or the page's address cannot be bound.
    """
    from rankmem_aggregator.page.serving import PageServer

    chosen = ""
    if session is not None:
        with open_queries(target) as queries:
            chosen = f"&s={queries.session_id(session)}"
    server = PageServer(config, lambda: open_queries(target))
    link = server.link() + chosen
    note(f"rankmem: the page is at {link}")
    note("rankmem: the link lets one browser in, within ten minutes; Ctrl-C ends the page")
    if open_browser:
        webbrowser.open(link)
    server.run()
