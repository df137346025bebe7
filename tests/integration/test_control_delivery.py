"""Orders on their way: a real aggregator, real shippers, and ranks of which only the spool is real."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from edge_shipping import WHOLE, at_aggregator, step_until
from ingest_client import IngestClient
from lake_serving import SESSION, serving
from rankmem_agent.spool.layout import Detail, Kind, Outcome
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.query.remote import RemoteQueries
from rankmem_aggregator.server import aggregator as server
from rankmem_protos.credentials import Credentials
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.query_pb2 import ControlRequest
from rankmem_ship.shipper import Shipper
from rankmem_ship.spool_reader.segments import CONTROL_DTYPE
from sample_batches import RankSource
from spool_synthetic import SyntheticSpool, clock_record, make_records

CONTROL, READER, WRITER = (f"{name}-0123456789abcdef" for name in ("control", "reader", "writer"))


@dataclass
class Rank:
    """A rank that follows orders when it is told to."""

    spool: SyntheticSpool
    steps: int = 0

    @classmethod
    def at(cls, session_dir: Path, rank: int, *, reads_orders: bool = True) -> Rank:
        path = session_dir / f"0-{rank}-1"
        spool = SyntheticSpool(path=path, session_id=session_dir.name, rank=rank, alive=True)
        made = cls(spool)
        made.page["order_reader"] = int(reads_orders)
        spool.append(clock_record(spool))
        made.step()
        return made

    @property
    def page(self) -> Any:
        return np.memmap(self.spool.path / "control", CONTROL_DTYPE, "r+")[:1]

    def step(self) -> None:
        now = self.spool.monotonic_ns + self.steps + 1
        self.spool.append(make_records(1, kind=Kind.STEP, a=self.steps, time_ns=now))
        self.steps += 1

    def follow(self) -> int:
        """Takes the order in its page, at its next step; the order's number."""
        self.step()
        page = self.page
        number, now = int(page["order_number"][0]), self.spool.monotonic_ns + self.steps
        fields = {"a": number, "b": self.steps, "c": page["order_detail"][0], "time_ns": now}
        page["order_taken"] = number
        self.spool.append(make_records(1, kind=Kind.DETAIL, action=Outcome.APPLIED, **fields))
        return number

    def has(self, order_id: int) -> bool:
        return int(self.page["order_number"][0]) == order_id


@dataclass
class Scene:
    """A host with two ranks, and its shipper."""

    address: str
    session_dir: Path
    ranks: list[Rank]
    shipper: Shipper

    def order(self, what: str, first: int = 5, **more: Any) -> int:
        request = ControlRequest(
            session_id=self.session_dir.name, what=what, step_first=first, asked_by="me@here", **more
        )
        with RemoteQueries(self.address) as queries:
            return int(queries.control(request).order_id)

    def control(self) -> list[dict[str, Any]]:
        with RemoteQueries(self.address) as queries:
            text = "SELECT * FROM control WHERE session_id = $session ORDER BY order_id, rank"
            return queries.sql(text, {"session": self.session_dir.name}).to_pylist()

    def replace_shipper(self) -> None:
        """As one that was killed is: nothing of it is left but the spools."""
        self.shipper.close("gone")
        self.shipper = at_aggregator(self.session_dir, self.address, WHOLE)
        step_until(self.shipper, "all is stored", self.is_stored)

    def is_stored(self) -> bool:
        uploads = self.shipper.uploads.values()
        return bool(uploads) and all(upload.stored + 1 >= upload.reader.next_seq for upload in uploads)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("control") / "d"
    with server.open(AggregatorConfig(database_path=path, listen="127.0.0.1:0")) as running:
        yield running.address


_numbers = itertools.count()


@contextmanager
def host(address: str, folder: Path, *, reads_orders: bool = True) -> Iterator[Scene]:
    """A host with two ranks of a session of their own, whose shipper has delivered what there is."""
    session_dir = folder / f"0TEST{next(_numbers):07}"
    ranks = [Rank.at(session_dir, number, reads_orders=reads_orders) for number in range(2)]
    made = Scene(address, session_dir, ranks, at_aggregator(session_dir, address, WHOLE))
    step_until(made.shipper, "all is stored", made.is_stored)
    yield made
    made.shipper.close("done")


@pytest.fixture
def scene(tmp_path: Path, address: str) -> Iterator[Scene]:
    with host(address, tmp_path) as made:
        yield made


def test_an_order_reaches_each_rank_and_what_came_of_it_is_a_row(scene: Scene) -> None:
    order_id = scene.order("summary", step_last=9)
    step_until(scene.shipper, "told", lambda: all(rank.has(order_id) for rank in scene.ranks))
    page = scene.ranks[0].page
    told = [int(page[name][0]) for name in ("order_detail", "order_step_first", "order_step_last")]
    assert told == [Detail.EVENTS, 5, 9]
    for _ in range(3):
        scene.ranks[0].step()
    assert [rank.follow() for rank in scene.ranks] == [order_id] * 2
    step_until(scene.shipper, "all is stored", scene.is_stored)
    rows = scene.control()
    assert [(row["rank"], row["state"], row["applied_step"], row["is_late"]) for row in rows] == [
        (0, "applied", 5, False),
        (1, "applied", 2, False),
    ]
    assert {(row["what"], row["step_first"], row["step_last"], row["asked_by"]) for row in rows} == {
        ("summary", 5, 9, "me@here from 127.0.0.1")
    }


def test_a_rank_that_took_the_last_step_before_it_was_told_is_late(scene: Scene) -> None:
    order_id = scene.order("stop", first=2, ranks=[1])
    step_until(scene.shipper, "told", lambda: scene.ranks[1].has(order_id))
    assert not scene.ranks[0].has(order_id)
    for _ in range(4):
        scene.ranks[1].step()
    scene.ranks[1].follow()
    step_until(scene.shipper, "all is stored", scene.is_stored)
    (row,) = scene.control()
    assert (row["rank"], row["applied_step"], row["is_late"]) == (1, 6, True)


def test_an_order_that_a_shipper_took_with_it_is_told_to_the_next_and_one_that_was_followed_is_not(
    scene: Scene,
) -> None:
    first = scene.order("summary")
    scene.replace_shipper()  # it never looked at its replies
    step_until(scene.shipper, "told", lambda: all(rank.has(first) for rank in scene.ranks))
    for rank in scene.ranks:
        rank.follow()
    second = scene.order("full")
    scene.replace_shipper()
    step_until(scene.shipper, "told", lambda: all(rank.has(second) for rank in scene.ranks))
    for rank in scene.ranks:
        rank.follow()
    scene.replace_shipper()
    assert all(rank.has(second) for rank in scene.ranks), "the earlier one is not written again"
    assert [(row["order_id"], row["state"]) for row in scene.control()] == [
        (first, "applied"), (first, "applied"), (second, "applied"), (second, "applied"),
    ]  # fmt: skip


def test_orders_in_a_row_wait_until_the_one_before_was_taken(scene: Scene) -> None:
    first, second = scene.order("summary"), scene.order("full", first=9)
    step_until(scene.shipper, "told", lambda: all(rank.has(first) for rank in scene.ranks))
    scene.ranks[0].follow()
    step_until(scene.shipper, "told", lambda: scene.ranks[0].has(second))
    assert scene.ranks[1].has(first)


def test_where_no_shipper_is_connected_nothing_is_ordered(scene: Scene) -> None:
    with pytest.raises(RankmemError, match="rank 7 of attempt 0: not running"):
        scene.order("stop", ranks=[0, 7])
    for rank in scene.ranks:
        rank.spool.end()
    step_until(scene.shipper, "all is delivered", lambda: scene.shipper.is_done)
    with pytest.raises(RankmemError, match="no running rank of session") as caught:
        scene.order("stop")
    assert caught.value.code is Code.NOT_FOUND


def test_a_lake_has_the_same_rows(tmp_path: Path) -> None:
    with serving(tmp_path / "lake") as running, host(running.address, tmp_path) as scene:
        order_id = scene.order("summary")
        step_until(scene.shipper, "told", lambda: all(rank.has(order_id) for rank in scene.ranks))
        for rank in scene.ranks:
            rank.follow()
        step_until(scene.shipper, "all is stored", scene.is_stored)
        assert [(row["order_id"], row["state"]) for row in scene.control()] == [(order_id, "applied")] * 2


def test_a_rank_that_reads_no_orders_is_a_row_with_the_reason(address: str, tmp_path: Path) -> None:
    with host(address, tmp_path, reads_orders=False) as scene:
        scene.order("summary", ranks=[1])

        def is_told() -> bool:
            scene.ranks[1].step()
            return bool(scene.control())

        step_until(scene.shipper, "a row", is_told)
        (row,) = scene.control()
        assert (row["state"], "older version" in row["obstacle"]) == ("obstacle", True)
        assert not scene.ranks[1].has(row["order_id"])


def test_an_older_shipper_is_named_and_nothing_is_changed(address: str) -> None:
    source = RankSource(session_id=SESSION)
    with IngestClient(address) as client, RemoteQueries(address) as queries:
        client.open(source)
        with pytest.raises(RankmemError, match="shipper of rank 0 is of a version without control") as caught:
            queries.control(ControlRequest(session_id=SESSION, what="stop", step_first=1))
    assert caught.value.code is Code.UNSUPPORTED


def test_an_older_aggregator_is_named_with_what_to_do() -> None:
    older = grpc.server(ThreadPoolExecutor(1))
    port = older.add_insecure_port("127.0.0.1:0")
    older.start()
    with (
        RemoteQueries(f"127.0.0.1:{port}") as queries,
        pytest.raises(RankmemError, match="version of rankmem without control") as caught,
    ):
        queries.control(ControlRequest(session_id=SESSION, what="stop"))
    older.stop(None)
    assert (caught.value.code, "upgrade rankmem" in caught.value.hint) == (Code.UNSUPPORTED, True)


def test_only_a_token_for_control_may_order_and_it_may_read_too(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("ingest", "query", "control")}
    for path, token in zip(files.values(), (WRITER, READER, CONTROL), strict=True):
        path.write_text(token)
        path.chmod(0o600)
    config = AggregatorConfig(database_path=tmp_path / "d", listen="127.0.0.1:0")
    options = {f"{name}_token_file": path for name, path in files.items()}
    with server.open(dataclasses.replace(config, **options)) as running:  # type: ignore[arg-type]
        for name, path in files.items():
            with (
                RemoteQueries(running.address, Credentials(token_file=str(path))) as queries,
                pytest.raises(RankmemError) as caught,
            ):
                queries.control(ControlRequest(session_id=SESSION, what="stop"))
            may = name == "control"
            assert caught.value.code is (Code.NOT_FOUND if may else Code.DENIED)
            assert ("may not control what is recorded here" in caught.value.message) is not may
        with RemoteQueries(running.address, Credentials(token_file=str(files["control"]))) as queries:
            assert queries.sql("SELECT 1 AS n").to_pylist() == [{"n": 1}]
