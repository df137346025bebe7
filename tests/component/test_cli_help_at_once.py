"""The command line's help is there at once."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("duckdb", "grpc", "pyarrow", "torch", "numpy", "rich.console", "google.protobuf")


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "from rankmem_cli.main import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        f"print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert "Commands:" in done.stdout
    assert done.stderr == "[]\n"
