"""A job into an aggregator with TLS and tokens; where the token is looked for, and not found."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import duckdb
import pytest

from main_job import RANKMEM, RUN, call, environment
from rankmem_aggregator.server import certs

SCRIPTS = Path(__file__).with_name("training_scripts")


class Secured(NamedTuple):
    folder: Path
    address: str
    log: Path


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """`rankmem serve` on every address, as its documentation says it."""
    folder = tmp_path_factory.mktemp("secured")
    certs.make(folder / "certs")
    flags = [
        *("--tls-cert", "certs/aggregator.pem", "--tls-key", "certs/aggregator.key"),
        *("--ingest-token-file", "certs/ingest.token", "--query-token-file", "certs/query.token"),
    ]
    log = folder / "serve.log"
    with (
        log.open("w") as said,
        subprocess.Popen(
            (*RANKMEM, "serve", "--db", "mem.duckdb", "--listen", "0.0.0.0:0", *flags),
            cwd=folder,
            env=environment(folder),
            stderr=subprocess.PIPE,
            stdout=said,
            text=True,
        ) as process,
    ):
        assert process.stderr is not None
        try:
            said_where = next(line for line in process.stderr if "listening on 0.0.0.0:" in line)
            port = said_where.partition("listening on 0.0.0.0:")[2].split(",")[0]
            yield Secured(folder, f"127.0.0.1:{port}", log)
        finally:
            process.terminate()
            log.write_text(log.read_text() + process.stderr.read())


def test_off_loopback_it_does_not_start_without_both_nor_says_yes_quietly(tmp_path: Path) -> None:
    done = call((*RANKMEM, "serve", "--listen", "0.0.0.0:0"), tmp_path)
    assert done.returncode == 1
    assert "no TLS and no token" in done.stderr
    assert "--insecure: anybody who reaches the port can then read everything" in done.stderr
    assert not list(tmp_path.glob("*.duckdb*"))


@pytest.fixture(scope="module")
def job(secured: Secured) -> subprocess.CompletedProcess[str]:
    flags = (
        "--aggregator",
        secured.address,
        "--tls-ca",
        "certs/ca.pem",
        "--token-file",
        "certs/ingest.token",
    )
    return call((*RUN, *flags, "--", sys.executable, str(SCRIPTS / "tells_all.py")), secured.folder)


def test_a_job_is_recorded_with_the_right_to_write_alone_and_says_that_it_may_not_read(
    secured: Secured, job: subprocess.CompletedProcess[str]
) -> None:
    assert job.returncode == 0, job.stderr
    assert "the token may write but not read" in job.stderr
    flags = ("--aggregator", secured.address, "--tls-ca", "certs/ca.pem", "--token-file", "certs/query.token")
    done = call((*RANKMEM, "ranks", *flags, "--format", "json"), secured.folder)
    assert done.returncode == 0, done.stderr
    (rank,) = json.loads(done.stdout)
    assert rank["complete"]
    assert rank["events"] > 0


def test_the_token_is_in_no_command_line_environment_log_spool_or_database(
    secured: Secured, job: subprocess.CompletedProcess[str]
) -> None:
    token = (secured.folder / "certs" / "ingest.token").read_text().strip()
    told = json.loads(job.stdout)
    # What the script saw while the shipper shipped: it must have seen the real thing, to prove anything.
    assert any("rankmem_ship" in line for line in told["command_lines"])
    assert any("certs/ingest.token" in text for text in told["environments"])
    assert any(name.endswith("meta.json") for name in told["spool"])
    assert any("certs/ingest.token" in text for text in told["spool"].values())
    assert token not in job.stdout + job.stderr
    for path in secured.folder.rglob("*"):
        if path.is_file() and path.parent.name != "certs":
            assert token.encode() not in path.read_bytes(), path


def test_a_wrong_ca_is_said_before_the_summary_and_the_training_is_not_touched(secured: Secured) -> None:
    certs.make(secured.folder / "other")
    flags = (
        "--aggregator",
        secured.address,
        "--tls-ca",
        "other/ca.pem",
        "--token-file",
        "certs/ingest.token",
    )
    command = (*RUN, "--drain-s", "1", *flags, "--", sys.executable, str(SCRIPTS / "tells_all.py"))
    done = call(command, secured.folder)
    assert done.returncode == 0
    assert "not signed by --tls-ca" in done.stderr
    assert "rankmem ship" in done.stderr


def test_a_token_file_that_cannot_be_used_stops_the_job_before_it_begins(secured: Secured) -> None:
    flags = ("--aggregator", secured.address, "--tls-ca", "certs/ca.pem", "--token-file", "certs/nothing")
    done = call((*RUN, *flags, "--", sys.executable, "-c", "print('ran')"), secured.folder)
    assert done.returncode == 1
    assert "--token-file" in done.stderr
    assert "ran" not in done.stdout


def texts(database: Path) -> dict[str, set[str]]:
    """Every text of every column of a database."""
    found: dict[str, set[str]] = {}
    with duckdb.connect(database, read_only=True) as connection:
        columns = connection.execute(
            "SELECT table_name, column_name FROM duckdb_columns() WHERE schema_name = 'main' "
            "AND table_name IN (SELECT table_name FROM duckdb_tables())"
        ).fetchall()
        for table, column in columns:
            values = connection.table(table).select(duckdb.ColumnExpression(column)).distinct().fetchall()
            found[f"{table}.{column}"] = {str(value) for (value,) in values}
    return found


@pytest.mark.parametrize("stacks", [pytest.param("names", marks=pytest.mark.long), "full"])
def test_paths_secrets_and_the_environment_stay_on_the_host(tmp_path: Path, stacks: str) -> None:
    script = SCRIPTS / "tells_all.py"
    command = (
        *RUN,
        "--db",
        "m.duckdb",
        "--",
        sys.executable,
        str(script),
        "--token",
        "s3cr3t-value",
    )
    done = call(
        command,
        tmp_path,
        RANKMEM_STACKS=stacks,
        RANKMEM_COMMAND="full",
        RANKMEM_PATH_MAP=f"{script.parent}=~,{sys.prefix}=VENV,{sys.base_prefix}=PYTHON",
        CANARY="/canary/of/the/environment",
    )
    assert done.returncode == 0, done.stderr
    told = texts(tmp_path / "m.duckdb")
    assert told["session.command"] == {"~/tells_all.py --token ***"}
    frames = told["stack_frame.function"]
    assert "<module>" in frames  # stacks were gathered
    assert told["stack_frame.file_path"] <= {"", "<outside>"} if stacks == "names" else True
    assert stacks == "names" or "~/tells_all.py" in told["stack_frame.file_path"]
    for column, values in told.items():
        for value in values:
            for kept in ("s3cr3t", "canary", str(script.parent), sys.prefix, str(Path.home())):
                assert kept not in value, (column, value)
