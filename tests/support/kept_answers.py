"""What a page that is one file holds.

Stage: tests. In: a file of ``rankmem export html``; out: its content, with the answers as Arrow tables.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa


def content_of(path: Path) -> dict[str, Any]:
    """The JSON in the file."""
    (found,) = re.findall(
        r'<script type="application/json" id="answers">(.*?)</script>', path.read_text("utf-8"), re.DOTALL
    )
    return dict(json.loads(found))


def answers_of(path: Path, route: str) -> list[pa.Table]:
    """The kept answers of a route, such as ``job``."""
    found = []
    for key, packed in content_of(path)["answers"].items():
        if key.partition("?")[0] == route:
            with pa.ipc.open_stream(pa.py_buffer(gzip.decompress(base64.b64decode(packed)))) as reader:
                found.append(reader.read_all())
    return found


def job_of(path: Path) -> list[dict[str, Any]]:
    """The ranks' devices with their peaks, as the file has them."""
    (job,) = answers_of(path, "job")
    rows: list[dict[str, Any]] = job.to_pylist()
    return rows
