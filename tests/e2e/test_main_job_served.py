"""An aggregator of its own: `rankmem serve`, ranks that start the agent themselves, questions meanwhile."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from main_job import RANKMEM, RUN, TIMEOUT_S, TORCHRUN, TRAIN, call, environment, rankmem, rows

DB = "mem.duckdb"


class Served(NamedTuple):
    folder: Path
    address: str
    process: subprocess.Popen[str]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """An aggregator that has taken one session of two ranks."""
    folder = tmp_path_factory.mktemp("served")
    with subprocess.Popen(
        (*RANKMEM, "serve", "--db", DB, "--listen", "127.0.0.1:0"),
        cwd=folder,
        env=environment(folder),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        first = next(line for line in process.stderr if "listening on 127.0.0.1:" in line)
        address = first.partition("listening on ")[2].split(",")[0]
        try:
            yield Served(folder, address, process)
        finally:
            if process.poll() is None:
                process.kill()


@pytest.fixture(scope="module")
def trained(served: Served) -> subprocess.CompletedProcess[str]:
    """`torchrun … -m rankmem_agent train.py`, as where no launcher of ours is in front."""
    command = (*TORCHRUN, "--nproc-per-node", "2", "-m", "rankmem_agent", str(TRAIN), "--steps", "3")
    done = call(command, served.folder, RANKMEM_AGGREGATOR=served.address, RANKMEM_DRAIN_S="60")
    assert done.returncode == 0, done.stderr  # here, where gloo's own fault makes pytest try again
    return done


def test_ranks_that_start_the_agent_themselves_are_all_there(
    served: Served, trained: subprocess.CompletedProcess[str]
) -> None:
    assert trained.stdout.count("loss") == 3
    ranks = rows(served.folder, "ranks", "--aggregator", served.address)
    assert [(row["rank"], row["complete"], row["events_lost"]) for row in ranks] == [
        (0, True, 0),
        (1, True, 0),
    ]


@pytest.mark.usefixtures("trained")
def test_who_names_the_file_is_led_to_the_aggregator(served: Served) -> None:
    by_file = rows(served.folder, "peak", "--db", DB)
    assert by_file == rows(served.folder, "peak", "--aggregator", served.address)
    assert len(by_file) == 2


@pytest.mark.usefixtures("trained")
def test_a_copy_can_be_taken_while_it_runs(served: Served) -> None:
    rankmem(served.folder, "export", "duckdb", "copy.duckdb", "--aggregator", served.address)
    assert rows(served.folder, "peak", "--db", "copy.duckdb") == rows(served.folder, "peak", "--db", DB)


@pytest.mark.usefixtures("trained")
def test_run_records_into_a_database_that_an_aggregator_holds(served: Served) -> None:
    plain = (TORCHRUN[0], str(TRAIN), "--steps", "1")
    done = call((*RUN, "--db", DB, "--name", "second", "--", *plain), served.folder)
    assert done.returncode == 0
    assert f"the aggregator at {served.address} holds" in done.stderr
    assert rows(served.folder, "sessions", "--db", DB)[0]["name"] == "second"


@pytest.mark.usefixtures("trained")
def test_sql_through_the_aggregator_is_confined(served: Served) -> None:
    (served.folder / "secret.csv").write_text("a\n1\n")
    done = call((*RANKMEM, "sql", "FROM 'secret.csv'", "--db", DB), served.folder)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")


@pytest.mark.usefixtures("trained")
def test_the_first_signal_drains_and_the_file_stands_alone(served: Served) -> None:
    before = rows(served.folder, "peak", "--db", DB)
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(timeout=TIMEOUT_S) == 0
    assert not (served.folder / f"{DB}.address").exists()
    assert not (served.folder / f"{DB}.wal").exists()
    assert rows(served.folder, "peak", "--db", DB) == before
