"""``rankmem serve`` as a process of its own, for tests of several recorders of one aggregator."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from main_job import RANKMEM, TIMEOUT_S, environment


@contextlib.contextmanager
def served(folder: Path, name: str = "job.duckdb") -> Iterator[str]:
    """An aggregator on a free port; its HOST:PORT."""
    command = (*RANKMEM, "serve", "--db", str(folder / name), "--listen", "127.0.0.1:0")
    with subprocess.Popen(
        command, cwd=folder, env=environment(folder), stderr=subprocess.PIPE, text=True
    ) as serving:
        assert serving.stderr is not None
        said = serving.stderr.readline()
        found = re.search(r"127\.0\.0\.1:\d+", said)
        assert found, said
        try:
            yield found[0]
        finally:  # a test that fails would wait for it for ever
            serving.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                serving.communicate(timeout=TIMEOUT_S)
