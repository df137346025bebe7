"""The page's own files, read once: what is not among them at the start cannot be asked for.

Stage: page, in uvicorn's event loop.
"""

from __future__ import annotations

import hashlib
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
FIRST_MODULES: Final = ("/early.js", "/main.js", "/views/job.js")
"""What the first picture needs, with all that these import, what runs first in front: by the imports alone a
browser asks for it in eight turns, one after the other."""
_PRELOAD: Final = '<link rel="modulepreload" fetchpriority="low" href='
"""What early.js asks for overtakes them: a browser has six connections."""
_MAIN: Final = '<script type="module" src="'
_OWN: Final = re.compile(r'(?<= )(href|src)="(?=[\w/.]+")')
"""Where the page names a file of its own."""
_IMPORT: Final = re.compile(r'^(?:import|export)\b[^"\n]*"(\.[^"]+)";$', re.MULTILINE)
KEPT: Final = "max-age=31536000, immutable"
ASKED_EACH_TIME: Final = "no-cache"
"""Kept, and asked whether it is still the same."""
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
        digest = hashlib.sha256()
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.name.startswith("."):
                kind = _TYPES.get(path.suffix, "text/plain; charset=utf-8")
                name, body = f"/{path.relative_to(folder).as_posix()}", _packed(path.read_bytes())
                self._files[name] = body, kind
                digest.update(f"{name} {body.tag}".encode())
        self._kept = f"/of-{digest.hexdigest()[:16]}"
        """Below it are the same files for a browser to keep: with other files it is another address."""
        index, kind = self._files.pop(INDEX)
        self._files |= {f"{self._kept}{name}": each for name, each in self._files.items()}
        text = _OWN.sub(rf'\1="{self._kept[1:]}/', self._with_preloads(index.plain().decode()))
        self._files[INDEX] = _packed(text.encode()), kind

    async def respond(self, request: Request) -> Response:
        """The file of a request's path.

        Raises:
            RankmemError: NOT_FOUND.
        """
        path = request.url.path
        body, kind = self.file(path)
        kept = KEPT if path.startswith(f"{self._kept}/") else ASKED_EACH_TIME
        return body_response(request, body, kind, kept)

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
        links = (f'{_PRELOAD}"{path[1:]}">\n' for path in self._first_modules())
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


def _packed(data: bytes) -> Body:
    """As small as gzip makes it: that is done once, and takes 0.03 s of CPU for all files."""
    return Body.of(data, level=9, least_bytes=0)
