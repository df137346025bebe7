"""``rankmem page``: the web page over a database or a running aggregator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankmem_cli.args import options

Listen = Annotated[
    str,
    typer.Option(
        "--listen",
        metavar="HOST:PORT",
        help="Where to serve the page; port 0 takes a free one. Off loopback TLS and tokens are required.",
    ),
]
Open = Annotated[bool, typer.Option("--open", help="Open the link in this machine's browser.")]
Names = Annotated[
    list[str] | None,
    typer.Option("--page-name", metavar="NAME", help="A further host name by which browsers reach the page."),
]
PageCert = Annotated[
    Path | None, typer.Option("--page-tls-cert", metavar="FILE", help="The page's own certificate.")
]
PageKey = Annotated[Path | None, typer.Option("--page-tls-key", metavar="FILE", help="Its private key.")]
QueryTokens = Annotated[
    Path | None,
    typer.Option("--query-token-file", metavar="FILE", help="Tokens of programs that may ask, one per line."),
]
EditorUrl = Annotated[
    str,
    typer.Option(
        "--editor-url",
        metavar="URL",
        help="Opens a line of a stack in your editor: vscode://file/home/me/project/{file}:{line}",
        show_default=False,
    ),
]


@options.reads
def page(
    source: options.Target,
    session: options.Session = None,
    listen: Listen = "127.0.0.1:0",
    open_: Open = False,
    page_name: Names = None,
    page_tls_cert: PageCert = None,
    page_tls_key: PageKey = None,
    query_token_file: QueryTokens = None,
    editor_url: EditorUrl = "",
) -> None:
    """Open the web page: all ranks over time, down to one event.

    Serves a database or a running aggregator, live or recorded, and prints a link that lets one browser in.
    The first Ctrl-C ends it once answers that are under way are sent, the second at once.
    """
    from rankmem_aggregator.page.config import PageConfig
    from rankmem_cli.run.page_service import serve_page
    from rankmem_protos.errors import Code, RankmemError

    if editor_url and "{file}" not in editor_url:
        raise RankmemError(
            Code.INVALID,
            f"--editor-url {editor_url} has no place for the file",
            "give an address such as vscode://file/home/me/project/{file}:{line}",
        )
    config = PageConfig(
        listen=listen,
        names=tuple(page_name or ()),
        tls_cert=page_tls_cert,
        tls_key=page_tls_key,
        query_token_file=query_token_file,
    )
    serve_page(source, config, session, open_browser=open_, editor_url=editor_url)
