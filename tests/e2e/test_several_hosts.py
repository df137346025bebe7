"""One job on two hosts, each with its own ``rankmem run``: one session in one aggregator.

The hosts are two namespaces of this machine (``unshare``), each with its own machine id, host name and
spools, as docs/multi-node.md has it. Where the kernel does not let us, the job runs as two launches of one
host, and only the count of hosts differs.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ending import outputs
from main_job import RUN, TIMEOUT_S, TRAIN, environment, rankmem, rows
from ports import free_port
from served import served

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
AS_A_HOST = """
mount --bind "$1" /etc/machine-id && hostname "$2" && shift 2 && exec "$@"
"""


def can_be_hosts(folder: Path) -> bool:
    """Whether this kernel lets a process be another host."""
    tried = subprocess.run(as_host(folder, 0, ("true",)), capture_output=True, check=False)
    return tried.returncode == 0


def as_host(folder: Path, number: int, command: tuple[str, ...]) -> tuple[str, ...]:
    machine_id = folder / f"machine-id-{number}"
    machine_id.write_text(f"{number:032x}\n")
    isolated = ("unshare", "--map-root-user", "--mount", "--uts")
    return (*isolated, "sh", "-c", AS_A_HOST, "sh", str(machine_id), f"node-{number}", *command)


@pytest.fixture
def aggregator(tmp_path: Path) -> Iterator[str]:
    """``rankmem serve`` on a free port."""
    with served(tmp_path) as address:
        yield address


def test_two_hosts_of_a_torchrun_are_one_session(tmp_path: Path, aggregator: str) -> None:
    are_hosts = can_be_hosts(tmp_path)
    rendezvous = ("--master-addr", "127.0.0.1", "--master-port", str(free_port()))
    launches = []
    for number in range(2):
        torchrun = (
            *TORCHRUN,
            "--nnodes",
            "2",
            "--node-rank",
            str(number),
            "--nproc-per-node",
            "1",
            *rendezvous,
        )
        run = (*RUN, "--aggregator", aggregator, "--session", "job-7", "--name", "two hosts", "--")
        command = (*run, *torchrun, str(TRAIN))
        command = as_host(tmp_path, number, command) if are_hosts else command
        spools = {"RANKMEM_SPOOL_DIR": str(tmp_path / f"spool-{number}"), "GLOO_SOCKET_IFNAME": "lo"}
        launches.append(
            subprocess.Popen(
                command,
                cwd=tmp_path,
                env=environment(tmp_path, **spools),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    said = [text for _, text in outputs(launches, TIMEOUT_S)]
    assert [launch.returncode for launch in launches] == [0, 0], said
    assert all("a separate session" not in text for text in said)
    place = ("--aggregator", aggregator)
    (session,) = rows(tmp_path, "sessions", *place)
    assert (session["name"], session["world_size"], session["num_ranks"]) == ("two hosts", 2, 2)
    assert session["num_hosts"] == (2 if are_hosts else 1)
    ranks = rows(tmp_path, "ranks", "--session", "two hosts", *place)
    assert [(rank["rank"], rank["attempt"], rank["complete"]) for rank in ranks] == [
        (0, 0, True),
        (1, 0, True),
    ]
    if are_hosts:
        assert [rank["host_name"] for rank in ranks] == ["node-0", "node-1"]
        by_host = rows(tmp_path, "peak", "--by", "host", *place)
        assert sorted(row["group_name"] for row in by_host) == ["node-0", "node-1"]
    shares = rows(tmp_path, "job-peak", *place)
    assert sorted(share["rank"] for share in shares) == [0, 1]
    assert "sum of 2 ranks" in timeline_title(tmp_path, aggregator)


def timeline_title(folder: Path, aggregator: str) -> str:
    page = folder / "job.html"
    rankmem(folder, "timeline", "--by", "rank", "--aggregator", aggregator, "--out", str(page))
    return page.read_text(encoding="utf-8")


def test_a_host_that_cannot_know_of_the_others_says_so(tmp_path: Path) -> None:
    port = str(free_port())
    alone = ("--nnodes", "1:2", "--rdzv-backend", "static", "--master-port", port)
    command = (*RUN, "--", sys.executable, "-c", "pass", "torchrun", *alone)
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "this host is a separate session" in done.stderr
    assert "--aggregator HOST:PORT" in done.stderr
