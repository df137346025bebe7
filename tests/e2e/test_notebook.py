"""``with rankmem.record():`` and ``rankmem.peak()``, in a plain Python process and in a real notebook."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import nbformat
import pytest
from nbclient import NotebookClient

from main_job import RANKMEM, call, environment, rows
from ports import free_port

HEAVY = "{'grpc', 'duckdb', 'pyarrow'}"
LOADED = "{name.partition('.')[0] for name in sys.modules}"
TRAINS = """
import torch
layer = torch.nn.Linear(1 << 10, 1 << 8)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
for _ in range(3):
    optimizer.zero_grad()
    layer(torch.ones(64, 1 << 10)).sum().backward()
    optimizer.step()
"""
LIGHT = f"assert not {LOADED} & {HEAVY}, 'too heavy for a trainer'"
WEIGHT_BYTES = (1 << 10) * (1 << 8) * 4
PEAK_LEAST_BYTES = 3 * WEIGHT_BYTES
"""Parameters, gradients and momentum."""


def _indented(code: str) -> str:
    return "".join(f"    {line}\n" for line in code.strip().splitlines())


def _script(folder: Path, code: str) -> list[str]:
    path = folder / "cell.py"
    path.write_text(f"import os, sys\nimport rankmem\n{code}")
    return [sys.executable, str(path)]


def _leftover(session: str) -> list[str]:
    """Command lines of processes that work for a session."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = entry.read_text("utf-8", "replace").replace("\0", " ")
        except OSError:
            continue
        if session in text:
            found.append(text)
    return found


def test_a_block_of_a_script_is_recorded_and_nothing_is_left(tmp_path: Path) -> None:
    code = f"""
{LIGHT}
assert 'torch' not in sys.modules
ours = [name for name in os.environ if name.startswith('RANKMEM')]
with rankmem.record('cell.duckdb') as recording:
{_indented(TRAINS)}
    {LIGHT}
{LIGHT}
assert [name for name in os.environ if name.startswith('RANKMEM')] == ours
assert recording.is_delivered and recording.saw_torch_begin
torch.ones(1 << 24)  # after the block: not in it
print(recording.session_id)
print(rankmem.peak(recording))
"""
    done = call(_script(tmp_path, code), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    session, title, *table = done.stdout.splitlines()
    assert re.fullmatch(r"peak \d\.\d\d MiB on cpu, \+\d+\.\d{3} s after the recording's start", title)
    assert any("cell.py:" in line for line in table)
    (rank,) = rows(tmp_path, "ranks", "--db", "cell.duckdb")
    assert (rank["complete"], rank["events_lost"], rank["rank"]) == (True, 0, 0)
    (peak,) = rows(tmp_path, "peak", "--db", "cell.duckdb")
    assert PEAK_LEAST_BYTES <= peak["peak_requested_bytes"] < 2 * PEAK_LEAST_BYTES
    assert len(rows(tmp_path, "steps", "--db", "cell.duckdb")) == 3
    assert list((tmp_path / "spool").glob("*")) == []
    assert _leftover(session) == []


@pytest.mark.long
def test_memory_older_than_the_block_is_said_not_to_be_counted_and_an_exception_goes_on(
    tmp_path: Path,
) -> None:
    code = """
import torch
older = torch.ones(1 << 24)
try:
    with rankmem.record():
        held = torch.ones(1 << 20)
        del older
        raise KeyError('mine')
except KeyError as error:
    assert error.args == ('mine',)
view = rankmem.peak()
print(view)
assert view.peak_bytes == 4 << 20, view.peak_bytes
try:
    with rankmem.record():
        pass
except rankmem.RankmemError as error:
    print(error)
"""
    done = call(_script(tmp_path, code), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    *_, older, refused = done.stdout.splitlines()
    assert older == "memory that was allocated before the recording is not in these figures"
    assert "there is one recording in a process's life" in refused


@pytest.mark.parametrize(
    ("code", "variables", "message"),
    [
        ("rankmem.peak()", {}, "nothing was recorded in this process"),
        ("with rankmem.record():\n    rankmem.peak()", {}, "the recording still goes on"),
        ("with rankmem.record():\n    pass\nrankmem.peak()", {}, "torch was not imported"),
        ("with rankmem.record(): pass", {"RANK": "1", "WORLD_SIZE": "4"}, "this process is rank 1 of 4"),
        ("with rankmem.record(): pass", {"RANKMEM_PRELOAD": "1"}, "below rankmem run"),
        (
            "with rankmem.record('a.duckdb', aggregator='b:1'): pass",
            {},
            "both db=a.duckdb and aggregator=b:1 are given",
        ),
    ],
)
def test_what_cannot_be_recorded_or_asked_is_refused_in_words(
    code: str, variables: dict[str, str], message: str, tmp_path: Path
) -> None:
    done = call(_script(tmp_path, code), tmp_path, **variables)
    assert done.returncode == 1
    assert message in done.stderr.splitlines()[-1]


@pytest.mark.long
def test_what_no_aggregator_takes_stays_on_disk_and_its_shipper_ends(tmp_path: Path) -> None:
    code = f"""
import torch, warnings
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter('always')
    with rankmem.record(aggregator='127.0.0.1:{free_port()}', drain_s=0.5) as recording:
        torch.ones(1 << 20)
assert not recording.is_delivered
print(recording.session_id)
print(*(str(each.message) for each in warned))
"""
    done = call(_script(tmp_path, code), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    session, warning = done.stdout.splitlines()
    (folder,) = (tmp_path / "spool").iterdir()
    assert warning == f"some records are not stored yet (try: rankmem ship {folder})"
    assert _leftover(session) == []
    delivered = call((*RANKMEM, "ship", str(folder), "--db", "later.duckdb"), tmp_path)
    assert delivered.returncode == 0, delivered.stderr
    (rank,) = rows(tmp_path, "ranks", "--db", "later.duckdb")
    assert rank["complete"]


def test_a_notebook_shows_a_table_and_a_curve_in_the_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = environment(tmp_path, IPYTHONDIR=str(tmp_path), JPY_SESSION_NAME="/somewhere/my.ipynb")
    for name in os.environ.keys() - given.keys():
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    cells = [
        "import sys\nimport rankmem",
        f"with rankmem.record('cell.duckdb'):\n{_indented(TRAINS)}    {LIGHT}",
        f"{LIGHT}\nrankmem.peak()",
    ]
    notebook: Any = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    done = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert done.cells[1].outputs == []
    (output,) = done.cells[2].outputs
    page = ElementTree.fromstring(output.data["text/html"])
    (curve,) = page.iter("polyline")
    assert len(curve.attrib["points"].split()) > 10
    tables = [[cell.text for cell in table.iter("td")] for table in page.iter("table")]
    assert "optimizer_state" in tables[0]
    assert output.data["text/plain"].startswith("peak ")
    (session,) = rows(tmp_path, "sessions", "--db", "cell.duckdb")
    assert (session["name"], session["complete"]) == ("my.ipynb", True)
    assert _leftover(session["session_id"]) == []
