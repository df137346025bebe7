"""A Ray cluster that goes away, without Ray: the question says so, and the next one connects again."""

from __future__ import annotations

import importlib.machinery
import socket
import sys
import types
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from rankmem_aggregator.lake.engines import open_engine
from rankmem_aggregator.lake.kernel import Task
from rankmem_aggregator.lake.on_ray import START
from rankmem_aggregator.lake.parts import HostPart
from rankmem_protos.errors import Code, RankmemError

ROWS = pa.table({"rank": [3]})
TASKS = [
    Task(
        address="/lake",
        version=0,
        part=HostPart(session_id="0SESSION", ranks=(rank,), is_rest=False, host_uids=frozenset()),
        sql="SELECT 1",
        parameters={},
    )
    for rank in range(3)
]


class Ray(types.ModuleType):
    """As much of the package as the engine uses, until its connection breaks at one of its functions."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.__spec__ = importlib.machinery.ModuleSpec("ray", None)
        self.exceptions: Any = types.ModuleType("ray.exceptions")
        self.exceptions.RayError = type("RayError", (Exception,), {})
        self.exceptions.RpcError = type("RpcError", (self.exceptions.RayError,), {})
        self.breaks_at = ""
        self.num_connected, self._is_connected = 0, False

    def _reach(self, function: str) -> None:
        if function == self.breaks_at:
            self._is_connected = False
        if not self._is_connected:
            raise ConnectionError("Client is shutting down.")

    def init(self, address: str, **given: Any) -> None:
        self.num_connected, self._is_connected = self.num_connected + 1, True

    def is_initialized(self) -> bool:
        return self._is_connected

    def shutdown(self) -> None:
        self._is_connected = False

    def nodes(self) -> list[dict[str, Any]]:
        self._reach("nodes")
        return [{"Alive": True, "Resources": {"CPU": 2.0, "memory": 1e9}}]

    def remote(self, **options: Any) -> Any:
        def asked(order: bytes) -> object:
            self._reach("remote")
            return object()

        return lambda function: types.SimpleNamespace(remote=asked)

    def wait(self, refs: list[object]) -> tuple[list[object], list[object]]:
        self._reach("wait")
        return refs[:1], refs[1:]

    def get(self, ref: object) -> tuple[str, bytes]:
        self._reach("get")
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, ROWS.schema) as writer:
            writer.write_table(ROWS)
        return "answer", sink.getvalue().to_pybytes()

    def cancel(self, ref: object, *, force: bool) -> None:
        self._reach("cancel")


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    made = Ray()
    monkeypatch.setitem(sys.modules, "ray", made)
    monkeypatch.setitem(sys.modules, "ray.exceptions", made.exceptions)
    return made


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.mark.parametrize("function", ["nodes", "remote", "wait", "get"])
def test_a_connection_that_breaks_fails_the_question_and_the_next_one_connects_again(
    ray: Ray, listening: socket.socket, function: str
) -> None:
    address = f"ray://127.0.0.1:{listening.getsockname()[1]}"
    engine = open_engine(address)
    ray.breaks_at = function
    with pytest.raises(RankmemError) as failed:
        list(engine.run(iter(TASKS)))
    assert failed.value.code is Code.UNAVAILABLE
    assert failed.value.message == f"the connection to {address} broke: Client is shutting down."
    assert failed.value.hint == f"ask again, or {START}"
    ray.breaks_at = ""
    assert [rows for _, rows in engine.run(iter(TASKS))] == [ROWS] * len(TASKS)
    assert ray.num_connected == 2
    engine.close()


def test_a_cluster_that_is_gone_is_named_until_it_is_back(ray: Ray, listening: socket.socket) -> None:
    port = listening.getsockname()[1]
    engine = open_engine(f"ray://127.0.0.1:{port}")

    def tasks() -> Iterator[Task]:
        yield TASKS[0]
        ray.breaks_at = "remote"
        listening.close()
        yield TASKS[1]

    for asked in (tasks(), iter(TASKS)):
        with pytest.raises(RankmemError, match=f"no Ray cluster at 127.0.0.1:{port}: .*refused") as failed:
            list(engine.run(asked))
        assert failed.value.code is Code.UNAVAILABLE
        assert failed.value.hint.startswith(START)
    ray.breaks_at = ""
    with socket.create_server(("127.0.0.1", port)):
        assert [rows for _, rows in engine.run(iter(TASKS))] == [ROWS] * len(TASKS)
    engine.close()
