"""The page's own files, read once: what is not among them at the start cannot be asked for.

Stage: page, in uvicorn's event loop.
"""

from __future__ import annotations

import posixpath
import re
from importlib import resources
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from rankmem_aggregator.page.cache import Body
from rankmem_aggregator.page.responses import body_response
from rankmem_protos.errors import Code, RankmemError

INDEX: Final = "/index.html"
FIRST_MODULES: Final = ("/main.js", "/views/job.js")
"""What the first picture needs, with all that these import: by the imports alone a browser asks for it in
eight turns, one after the other."""
_MAIN: Final = '<script type="module"'
_IMPORT: Final = re.compile(r'^(?:import|export)\b[^"\n]*"(\.[^"]+)";$', re.MULTILINE)
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
        index, kind = self._files[INDEX]
        self._files[INDEX] = Body.of(self._with_preloads(index.plain().decode()).encode()), kind

    async def respond(self, request: Request) -> Response:
        """The file of a request's path.

        Raises:
            RankmemError: NOT_FOUND.
        """
        body, kind = self.file(request.url.path)
        return body_response(request, body, kind, "no-cache")  # kept, and asked whether it is still the same

    def file(self, path: str) -> tuple[Body, str]:
        """A file and its type.

        Raises:
            RankmemError: NOT_FOUND.
        """
        found = self._files.get(INDEX if path == "/" else path)
        if found is None:
            raise RankmemError(
                Code.NOT_FOUND, f"nothing is at {path[:80]!r}", "docs/page.md lists the routes"
            )
        return found

    def _with_preloads(self, index: str) -> str:
        """The page with its first modules named, so that a browser asks for all of them at once."""
        links = (f'<link rel="modulepreload" href="{path[1:]}">\n' for path in self._first_modules())
        return index.replace(_MAIN, f"{''.join(links)}{_MAIN}", 1)

    def _first_modules(self) -> list[str]:
        """FIRST_MODULES and all that they import, in the order in which a browser would find them."""
        found = list(FIRST_MODULES)
        for path in found:  # grows meanwhile
            folder = posixpath.dirname(path)
            names = _IMPORT.findall(self._files[path][0].plain().decode())
            paths = (posixpath.normpath(posixpath.join(folder, name)) for name in names)
            found += (each for each in dict.fromkeys(paths) if each not in found)
        return found
