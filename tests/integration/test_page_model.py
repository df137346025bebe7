"""Module tree, parameters, static graphs and the process beyond the allocator equal what is stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from constructed import SESSION, RankLog, empty_database, store_logs, store_rows
from page_server import PageClient, served_page
from rankmem_aggregator import connect
from rankmem_aggregator.page.reading import facts_of

SECOND = 1_000_000_000
MIB = 1 << 20
OF_RANK = {"session_id": SESSION, "attempt": 0, "rank": 1}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("model") / "model.duckdb"
    logs = []
    for rank in range(2):
        log = RankLog(rank=rank, ended=10 * SECOND, offset_ns=rank * 700)
        log.alloc("a", 3 * MIB, at=SECOND, device="cuda:0", module="net.layer")
        log.alloc("b", 2 * MIB, at=2 * SECOND, device="cuda:0", module="net")
        log.alloc("c", MIB, at=3 * SECOND, device="cuda:0")
        log.sample(9 * MIB, at=4 * SECOND, device="cuda:0")
        log.sample(None, at=5 * SECOND, device="cuda:0")
        logs.append(log)
    graph = OF_RANK | {"device": "npu:0", "graph_id": "g1", "model": "net"}
    with empty_database(str(found)) as connection:
        store_logs(connection, logs)
        store_rows(
            connection,
            "weight",
            [
                *(
                    OF_RANK | {"name": f"net.layer.w{i}", "size_bytes": i * MIB, "grad_size_bytes": i}
                    for i in range(1, 5)
                ),
                OF_RANK | {"name": "other.w", "size_bytes": MIB, "grad_size_bytes": 0},
            ],
        )
        store_rows(
            connection,
            "static_block",
            [
                graph | {"operator": "TOTAL", "node_first": 0, "node_last": 0, "size_bytes": 64 * MIB},
                graph | {"operator": "x", "node_first": 1, "node_last": 4, "size_bytes": 8 * MIB},
                graph | {"operator": "y", "node_first": 2, "node_last": 4294967295, "size_bytes": 4 * MIB},
            ],
        )
    return found


@pytest.fixture(scope="module")
def client(path: Path) -> Iterator[PageClient]:
    with served_page(path) as served:
        yield served


@pytest.mark.parametrize("rank", [None, 1])
def test_modules_equal_the_clients_answer(client: PageClient, path: Path, rank: int | None) -> None:
    answer = client.ask(f"s/{SESSION}/modules", rank=rank)
    with connect(path) as queries:
        assert answer.to_pylist() == queries.modules(SESSION, rank=rank).to_pylist()
        assert answer.to_pylist() == queries.sql(facts_of(answer)["sql"]).to_pylist()
    own = {row["module"]: row["own_bytes"] for row in answer.to_pylist()}
    assert own["net.layer"] == 3 * MIB * (1 if rank else 2)


def test_weights_are_the_largest_with_the_sum_of_all(client: PageClient, path: Path) -> None:
    answer = client.ask(f"s/{SESSION}/weights", rank=1, limit=2)
    assert answer["name"].to_pylist() == ["net.layer.w4", "net.layer.w3"]
    assert (facts_of(answer)["total"], facts_of(answer)["total_bytes"]) == (5, 11 * MIB)
    assert facts_of(answer)["exact"] is False
    within = client.ask(f"s/{SESSION}/weights", rank=1, module="net")
    assert (within.num_rows, facts_of(within)["total_bytes"]) == (4, 10 * MIB)
    with connect(path) as queries:
        assert facts_of(within)["total_bytes"] + MIB == sum(
            queries.weights(SESSION)["size_bytes"].to_pylist()
        )


def test_a_static_graph_equals_its_blocks_node_by_node(client: PageClient, path: Path) -> None:
    assert client.ask(f"s/{SESSION}/static_graphs", rank=0).num_rows == 0
    graphs = client.ask(f"s/{SESSION}/static_graphs", rank=1).to_pylist()
    assert graphs == [{"graph_id": "g1", "model": "net", "operators": 2, "total_bytes": 64 * MIB}]
    nodes = client.ask(f"s/{SESSION}/static_curve", rank=1, graph="g1").to_pylist()
    assert [(row["node"], row["size_mb"]) for row in nodes] == [(1, 8.0), (2, 12.0), (4, 4.0), (5, 0.0)]
    assert {row["total_size_mb"] for row in nodes} == {64.0}
    operators = client.ask(f"s/{SESSION}/static_operators", rank=1, graph="g1").to_pylist()
    assert [(row["operator"], row["node_last"]) for row in operators] == [("x", 4), ("y", None)]


def test_what_lies_beyond_equals_the_view(client: PageClient, path: Path) -> None:
    answer = client.ask(f"s/{SESSION}/beyond", rank=1, device="cuda:0")
    told = {(row["name"], row["time_ns"]): row["bytes"] for row in answer.to_pylist()}
    with duckdb.connect(str(path), read_only=True) as connection:
        rows = connection.execute(
            "SELECT time_ns, app_reserved_bytes, known_bytes, app_bytes FROM app_curve WHERE rank = 1"
        ).fetchall()
    assert len(rows) == 2
    for time_ns, process, allocator, app in rows:
        at = time_ns - int(facts_of(answer)["origin_ns"])
        assert (told["process", at], told["allocator", at], told["app", at]) == (process, allocator, app)
