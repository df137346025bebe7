"""The page's own files, read once: what is not among them at the start cannot be asked for.

Stage: page, in uvicorn's event loop.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from rankmem_aggregator.page.cache import Body
from rankmem_aggregator.page.responses import body_response
from rankmem_protos.errors import Code, RankmemError

INDEX: Final = "/index.html"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".png": "image/png",
    ".woff2": "font/woff2",
}
"""By suffix; others, such as licences, are plain text."""


def static_folder() -> Path:
    """The folder of the page's own files."""
    return Path(str(resources.files("rankmem_aggregator.page") / "static"))


class StaticFiles:
    """The files of the folder by their paths."""

    def __init__(self, folder: Path) -> None:
        self._files: dict[str, tuple[Body, str]] = {}
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.name.startswith("."):
                kind = _TYPES.get(path.suffix, "text/plain; charset=utf-8")
                self._files[f"/{path.relative_to(folder).as_posix()}"] = Body.of(path.read_bytes()), kind

    async def respond(self, request: Request) -> Response:
        """The file of a request's path.

        Raises:
            RankmemError: NOT_FOUND.
        """
        path = request.url.path
        found = self._files.get(INDEX if path == "/" else path)
        if found is None:
            raise RankmemError(
                Code.NOT_FOUND, f"nothing is at {path[:80]!r}", "docs/page.md lists the routes"
            )
        body, kind = found
        return body_response(request, body, kind, "no-cache")  # kept, and asked whether it is still the same
