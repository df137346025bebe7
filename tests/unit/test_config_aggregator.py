"""The aggregator's options: validated at once, with messages that name the option."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankmem_aggregator.config import GIB, AggregatorConfig, target_from_environment
from rankmem_aggregator.host_port import is_every_address, is_loopback, plain_address, split_address
from rankmem_aggregator.machine import limits
from rankmem_aggregator.supervision.parent_pipe import WorkerOptions
from rankmem_protos.errors import Code, RankmemError


def test_an_argument_wins_over_the_environment_and_that_over_the_default() -> None:
    environment = {"RANKMEM_DB": "from_env.duckdb", "RANKMEM_LISTEN": "127.0.0.1:1", "RANKMEM_THREADS": "3"}
    config = AggregatorConfig.from_environment(environment, listen="127.0.0.1:2", threads=None)
    assert (config.database_path, config.listen, config.threads) == (
        Path("from_env.duckdb"),
        "127.0.0.1:2",
        3,
    )
    assert config.queries_max == AggregatorConfig().queries_max


def test_a_wrong_number_names_its_variable_and_value() -> None:
    with pytest.raises(RankmemError, match="RANKMEM_THREADS is 'many'") as caught:
        AggregatorConfig.from_environment({"RANKMEM_THREADS": "many"})
    assert caught.value.code is Code.INVALID


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("threads", -1, "--threads is -1"),
        ("queue_batches_max", 0, "--queue-batches-max is 0"),
        ("memory_limit_bytes", 1000, "--memory-limit-bytes is 1000"),
        ("query_timeout_s", float("nan"), "--query-timeout-s is nan"),
        ("listen", "nowhere", "'nowhere' is not an address"),
        ("listen", "127.0.0.1:70000", "port 70000"),
    ],
)
def test_a_bad_option_is_refused_with_its_name_and_value(option: str, value: object, named: str) -> None:
    with pytest.raises(RankmemError, match=named):
        AggregatorConfig.from_environment({}, **{option: value})


@pytest.mark.parametrize("listen", ["0.0.0.0:7077", "10.0.0.1:7077", "[::]:7077", "some-host:7077"])
def test_listening_off_loopback_needs_the_flag_that_names_what_it_means(listen: str) -> None:
    with pytest.raises(RankmemError, match="no TLS and no token") as caught:
        AggregatorConfig(listen=listen)
    assert caught.value.code is Code.DENIED
    assert "--insecure" in caught.value.hint
    assert AggregatorConfig(listen=listen, insecure=True).listen == listen


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "localhost:7077", "[::1]:7077", "127.8.8.8:1"])
def test_loopback_needs_no_flag(listen: str) -> None:
    assert AggregatorConfig(listen=listen).listen == listen


def test_the_memory_limit_defaults_to_a_share_of_the_machine_and_is_capped() -> None:
    assert 256 << 20 <= AggregatorConfig().memory_limit() <= 16 * GIB
    assert AggregatorConfig(memory_limit_bytes=GIB).memory_limit() == GIB


def test_an_address_splits_into_host_and_port() -> None:
    assert split_address("[::1]:7077") == ("::1", 7077)
    assert split_address("node-3:1") == ("node-3", 1)


def test_a_reader_is_led_by_options_then_environment_then_the_file_here() -> None:
    both = {"RANKMEM_DB": "env.duckdb", "RANKMEM_AGGREGATOR": "h:1"}
    assert target_from_environment("a.duckdb", None, both) == "a.duckdb"
    assert target_from_environment(None, "g:2", both) == "g:2"
    assert target_from_environment(None, None, both) == "env.duckdb"
    assert target_from_environment(None, None, {"RANKMEM_AGGREGATOR": "h:1"}) == "h:1"
    assert target_from_environment(None, None, {}) == "rankmem.duckdb"
    with pytest.raises(RankmemError, match="both --db"):
        target_from_environment("a.duckdb", "g:2", {})
    with pytest.raises(RankmemError, match=r"'mem\.duckdb' is not an address"):
        target_from_environment(None, "mem.duckdb", {})


@pytest.mark.parametrize(("processors", "told", "threads"), [(12, "", 3), (2, "", 1), (12, "5", 5)])
def test_an_embedded_database_takes_a_quarter_of_the_processors_unless_told(
    monkeypatch: pytest.MonkeyPatch, processors: int, told: str, threads: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(processors)))
    config = AggregatorConfig.embedded(Path("mem.duckdb"), {"RANKMEM_THREADS": told})
    assert config.thread_count() == threads


def test_metrics_off_loopback_need_a_flag_that_says_so() -> None:
    for host in ("0.0.0.0:9477", "10.0.0.1:9477", "[::]:9477"):
        with pytest.raises(RankmemError, match="metrics require no token") as refused:
            AggregatorConfig(metrics=host)
        assert "--metrics-open" in refused.value.hint
        assert AggregatorConfig(metrics=host, metrics_open=True).metrics == host
    assert AggregatorConfig(metrics="127.0.0.1:9477").metrics


def test_the_bound_on_memory_is_above_what_shippers_wait_at_and_within_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for machine in (64 * GIB, 8 * GIB, 2 * GIB):
        monkeypatch.setattr("rankmem_aggregator.config.memory_bytes", lambda machine=machine: machine)
        for given in (0, 2 * GIB, 32 * GIB):
            config = AggregatorConfig(memory_max_bytes=given)
            assert config.memory_max() == given or not given
            assert config.memory_budget() < config.memory_max()
            assert config.duckdb_memory() < config.memory_max()
        assert AggregatorConfig().memory_max() <= max(machine * 3 // 4, 2 * GIB)


def test_a_bound_that_duckdb_alone_would_meet_is_refused() -> None:
    with pytest.raises(RankmemError, match=r"--memory-max-bytes is 2147483648, and \d+ are needed") as caught:
        AggregatorConfig(memory_max_bytes=2 * GIB, memory_limit_bytes=GIB)
    assert "--memory-limit-bytes" in caught.value.hint


def test_a_container_is_the_machine(tmp_path: Path) -> None:
    process, groups = tmp_path / "cgroup", tmp_path / "groups"
    (groups / "job" / "step").mkdir(parents=True)
    (groups / "job" / "memory.max").write_text("1000\n")
    (groups / "job" / "step" / "memory.max").write_text("max\n")
    (groups / "memory" / "old").mkdir(parents=True)
    (groups / "memory" / "memory.limit_in_bytes").write_text("3000\n")
    process.write_text("9:cpu:/other\n4:cpu,memory:/old\n0::/job/step\n")
    assert sorted(limits(process, groups)) == [1000, 3000]
    assert list(limits(tmp_path / "none", groups)) == []


def test_an_order_arrives_as_it_was_sent() -> None:
    config = AggregatorConfig(database_path=Path("a b.duckdb"), tls_client_ca=None, keep_days=0.5)
    options = WorkerOptions(
        config=config,
        events_fd=3,
        running_fd=4,
        is_embedded=True,
        niceness=5,
        refused={"a": "SIGKILL"},
        suspects=("b",),
    )
    assert WorkerOptions.parse(options.line()) == options
    assert options.line().count(b"\n") == 1


@pytest.mark.parametrize(
    ("given", "plain", "loopback", "every"),
    [
        ("127.0.0.1", "127.0.0.1", True, False),
        ("::ffff:127.0.0.1", "127.0.0.1", True, False),
        ("::FFFF:7f00:1", "127.0.0.1", True, False),
        ("::ffff:10.1.2.3", "10.1.2.3", False, False),
        ("0:0:0:0:0:0:0:1", "::1", True, False),
        ("fe80::1%eth0", "fe80::1", False, False),
        ("::", "::", False, True),
        ("::ffff:0.0.0.0", "0.0.0.0", False, True),
        ("0.0.0.0", "0.0.0.0", False, True),
        ("Node-1.Example", "node-1.example", False, False),
        ("127.0.0.1.example", "127.0.0.1.example", False, False),
        ("::ffff:127.0.0.1.example", "::ffff:127.0.0.1.example", False, False),
    ],
)
def test_an_address_has_one_form(given: str, plain: str, loopback: bool, every: bool) -> None:
    assert (plain_address(given), is_loopback(given), is_every_address(given)) == (plain, loopback, every)
