"""The units of deploy/ under a real systemd: behind all their fences everything works, nothing else does."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from booted_systemd import DEPLOY, Booted, booted, missing
from main_job import RANKMEM, RUN, call
from ports import free_port
from rankmem_aggregator.server import certs
from waiting import until

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(missing()), reason=missing() or "-"),
]
SCRIPTS = Path(__file__).with_name("training_scripts")
SMALL = "Environment=RANKMEM_MEMORY_LIMIT_BYTES=268435456\n"
SPILLING = "SELECT count(*) AS n FROM (SELECT hash(range) AS h, count(*) FROM range(10000000) GROUP BY 1)"


def unit(name: str, *changes: tuple[str, str]) -> dict[str, str]:
    """A unit of deploy/, with another port or less memory."""
    text = (DEPLOY / name).read_text("utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return {name: text}


def train(folder: Path, address: str, **variables: str) -> None:
    command = (*RUN, "--aggregator", address, "--", sys.executable, str(SCRIPTS / "mlp.py"))
    done = call(command, folder, **variables)
    assert done.returncode == 0, done.stderr


def ask(folder: Path, address: str, *question: str, **variables: str) -> list[dict[str, object]]:
    done = call((*RANKMEM, *question, "--aggregator", address, "--format", "json"), folder, **variables)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, object]] = json.loads(done.stdout)
    return found


def worker_of(machine: Booted, service: str) -> int:
    """The process of the aggregator, which its parent keeps alive."""
    parent = machine.property(service, "MainPID")
    (child,) = machine.run("sh", "-c", f"cat /proc/{parent}/task/*/children").split()
    return int(child)


def check_fences(machine: Booted, service: str) -> None:
    """What the kernel says of the running process, not what the unit asks for."""
    worker = worker_of(machine, service)
    said = dict(re.findall(r"(\w+):\t(.*)", machine.run("cat", f"/proc/{worker}/status")))
    assert (said["NoNewPrivs"], said["Seccomp"], said["CapBnd"]) == ("1", "2", "0" * 16)
    assert said["Uid"].split() == ["987"] * 4
    bound = re.search(r"Max data size +(\d+)", machine.run("cat", f"/proc/{worker}/limits"))
    assert bound, "no bound on its memory"
    inside = ("nsenter", "-t", str(worker), "-m", "sh", "-c")
    assert "Read-only file system" in machine.run(*inside, "touch /etc/x", check=False)
    assert "Read-only file system" in machine.run(*inside, "touch /var/lib/x", check=False)


def test_an_aggregator_behind_its_fences_stores_answers_spills_and_comes_back(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    name = "rankmem.service"
    changed = unit(name, ("127.0.0.1:7077", address), ("[Service]\n", "[Service]\n" + SMALL))
    with booted(tmp_path, changed) as machine:
        machine.start(name)
        until("it serves", lambda: comes_back(tmp_path, address))
        train(tmp_path, address)
        check_fences(machine, name)
        assert all(rank["complete"] for rank in ask(tmp_path, address, "ranks"))
        before = ask(tmp_path, address, "peak")
        assert before
        assert ask(tmp_path, address, "sql", SPILLING) == [{"n": 10_000_000}]
        killed = worker_of(machine, name)
        machine.run("kill", "-KILL", str(killed))
        until("its parent starts it again", lambda: comes_back(tmp_path, address))
        assert worker_of(machine, name) != killed
        assert ask(tmp_path, address, "peak") == before
        machine.run("systemctl", "stop", name)
        assert machine.property(name, "Result") == "success"
        machine.start(name)
        until("it serves again", lambda: comes_back(tmp_path, address))
        assert ask(tmp_path, address, "peak") == before


def comes_back(folder: Path, address: str) -> bool:
    return call((*RANKMEM, "sessions", "--aggregator", address), folder).returncode == 0


def test_an_aggregator_of_a_lake_and_what_keeps_it_work_behind_their_fences(tmp_path: Path) -> None:
    secrets, port = tmp_path / "secrets", free_port()
    certs.make(secrets)
    name, keeper = f"rankmem-serve-lake@{port}.service", "rankmem-lake.service"
    units = unit("rankmem-serve-lake@.service") | unit(keeper) | unit("rankmem-lake.timer")
    address = f"127.0.0.1:{port}"
    write = {"RANKMEM_TLS_CA": f"{secrets}/ca.pem", "RANKMEM_TOKEN_FILE": f"{secrets}/ingest.token"}
    read = write | {"RANKMEM_TOKEN_FILE": f"{secrets}/query.token"}
    with booted(tmp_path, units, secrets) as machine:
        machine.start(name)
        train(tmp_path, address, **write)
        check_fences(machine, name)
        assert all(rank["complete"] for rank in ask(tmp_path, address, "ranks", **read))
        before = ask(tmp_path, address, "peak", **read)
        assert before
        machine.start(keeper)
        assert machine.property(keeper, "Result") == "success"
        assert ask(tmp_path, address, "peak", **read) == before
        machine.start("rankmem-lake.timer")
        assert keeper in machine.run("systemctl", "list-timers", "--no-pager")
        machine.run("systemctl", "stop", name)
        assert machine.property(name, "Result") == "success"
