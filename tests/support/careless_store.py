"""An object store that overwrites although it is asked not to: it ignores ``If-None-Match``.

Just enough of S3 for a lake: GET, HEAD, PUT, DELETE and lists of one bucket, in memory, without signatures.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

DATE = "2026-01-01T00:00:00.000Z"
HTTP_DATE = "Thu, 01 Jan 2026 00:00:00 GMT"


@contextmanager
def careless_store() -> Iterator[str]:
    """Its URL."""
    objects: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            objects[self._key()] = self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(200, b"", tag=objects[self._key()])

        def do_DELETE(self) -> None:
            objects.pop(self._key(), None)
            self._answer(204, b"")

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
            if "list-type" in query:
                self._answer(200, _listed(objects, query))
            elif (found := objects.get(self._key())) is None:
                self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            elif given := self.headers.get("Range"):
                begin, _, end = given.removeprefix("bytes=").partition("-")
                first = int(begin) if begin else len(found) - int(end)
                last = min(int(end), len(found) - 1) if begin and end else len(found) - 1
                content_range = f"bytes {first}-{last}/{len(found)}"
                self._answer(206, found[first : last + 1], tag=found, content_range=content_range)
            else:
                self._answer(200, found, tag=found)

        def log_message(self, *given: Any) -> None:
            """Nothing is logged."""

        def _key(self) -> str:
            return unquote(urlsplit(self.path).path).lstrip("/").partition("/")[2]

        def _answer(self, status: int, body: bytes, *, tag: bytes = b"", content_range: str = "") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", f'"{hashlib.sha256(tag).hexdigest()}"')
            self.send_header("Last-Modified", HTTP_DATE)
            if content_range:
                self.send_header("Content-Range", content_range)
            self.end_headers()
            if self.command != "HEAD" and status != 204:
                self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def _listed(objects: dict[str, bytes], query: dict[str, str]) -> bytes:
    """The answer of ListObjectsV2, all in one page."""
    prefix, delimiter, after = (query.get(name, "") for name in ("prefix", "delimiter", "start-after"))
    keys, folders = [], set()
    for key in sorted(objects):
        if not key.startswith(prefix) or key <= after:
            continue
        head, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
        if found:
            folders.add(f"{prefix}{head}{delimiter}")
        else:
            keys.append(key)
    contents = "".join(
        f"<Contents><Key>{escape(key)}</Key><LastModified>{DATE}</LastModified><ETag>&quot;e&quot;</ETag>"
        f"<Size>{len(objects[key])}</Size></Contents>"
        for key in keys
    )
    shared = "".join(
        f"<CommonPrefixes><Prefix>{escape(f)}</Prefix></CommonPrefixes>" for f in sorted(folders)
    )
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}{shared}</ListBucketResult>".encode()
