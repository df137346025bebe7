"""A real Prometheus reads a real aggregator: rules, alerts that fire, and an answer for every panel.

Needs Debian's package prometheus (which brings promtool).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from file_size_limit import no_file_grows
from ingest_client import IngestClient
from ports import free_port
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.server import aggregator as server
from sample_batches import RankSource

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/rankmem-alerts.yml"
ALERTS = set(re.findall(r"alert: (\w+)", RULES.read_text("utf-8")))
PANELS = json.loads((ROOT / "deploy/grafana/rankmem.json").read_text("utf-8"))["panels"]
TIMEOUT_S = 60.0
pytestmark = pytest.mark.skipif(
    not (shutil.which("promtool") and shutil.which("prometheus")), reason="needs Debian's prometheus"
)


class CachingRank(RankSource):
    """A rank whose allocator says what it has allocated and reserved, as on CUDA."""

    def _bucket(self, events: list[tuple[object, ...]]) -> dict[str, object]:
        made = super()._bucket(events)
        for name in ("peak", "last"):
            made[f"allocated_{name}_bytes"] = made[f"requested_{name}_bytes"]
            made[f"reserved_{name}_bytes"] = made["requested_peak_bytes"] + (1 << 21)  # type: ignore[operator]
        return made


def promtool(*arguments: object) -> None:
    done = subprocess.run(
        ["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_configuration_and_the_rules() -> None:
    promtool("check", "config", ROOT / "deploy/prometheus.yml")
    promtool("check", "rules", RULES)


def test_each_alert_fires_when_it_must_and_not_before() -> None:
    cases = ROOT / "tests/support/alerts_test.yml"
    fired = re.findall(r"alertname: (\w+)\n\s+exp_alerts:", cases.read_text("utf-8"))
    assert set(fired) == ALERTS
    promtool("test", "rules", cases)


def until(found: Callable[[], Any]) -> Any:
    """The first answer that is not empty."""
    until_s = time.monotonic() + TIMEOUT_S
    while not (answer := found()):
        assert time.monotonic() < until_s, "nothing came"
        time.sleep(0.25)
    return answer


def get(address: str, path: str) -> Any:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=TIMEOUT_S) as reply:
        return json.load(reply)["data"]


def ask(address: str, expression: str) -> list[Any]:
    """What Prometheus answers now; errors are raised."""
    found: list[Any] = get(address, "/api/v1/query?" + urllib.parse.urlencode({"query": expression}))[
        "result"
    ]
    return found


@contextmanager
def prometheus(folder: Path, scraped: str, rules: str) -> Iterator[str]:
    """A Prometheus that scrapes once a second; its HOST:PORT."""
    configuration = (ROOT / "deploy/prometheus.yml").read_text("utf-8")
    configuration = configuration.replace("127.0.0.1:9477", scraped).replace(": 15s", ": 1s")
    (folder / "prometheus.yml").write_text("global: {evaluation_interval: 1s}\n" + configuration)
    (folder / RULES.name).write_text(rules)
    address = f"127.0.0.1:{free_port()}"
    command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb"]
    command += [f"--web.listen-address={address}", "--log.level=warn"]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as running:
        try:
            yield until(lambda: _is_ready(address))
        finally:
            running.terminate()


def _is_ready(address: str) -> str:
    try:
        with urllib.request.urlopen(f"http://{address}/-/ready", timeout=1):
            return address
    except OSError:
        return ""


def opened(folder: Path) -> server.Aggregator:
    config = AggregatorConfig.from_environment(
        {}, database_path=folder / "p.duckdb", listen="127.0.0.1:0", metrics="127.0.0.1:0", metrics_ranks=2
    )
    return server.open(config)


@pytest.mark.long
def test_prometheus_has_an_answer_for_every_query_of_the_dashboard(tmp_path: Path) -> None:
    queries = {target["expr"] for panel in PANELS for target in panel["targets"]}
    of_ranks = {query for query in queries if re.search(r"rankmem_rank_(used|peak|reserved)", query)}
    assert len(queries) > 25
    assert len(of_ranks) >= 4
    with (
        opened(tmp_path) as aggregator,
        prometheus(tmp_path, aggregator.metrics_address, RULES.read_text("utf-8")) as address,
        IngestClient(aggregator.address) as client,
    ):
        until(lambda: ask(address, "rate(rankmem_events_total[1m])"))
        assert not [query for query in queries - of_ranks if not ask(address, query)], "of a fresh aggregator"
        for rank in range(3):
            source = CachingRank(rank=rank)
            client.open(source)
            client.send(batch=source.batch(200 * (rank + 1)))
            client.acks(1)
        until(lambda: ask(address, "rankmem_rank_used_bytes"))
        assert not [query for query in queries if not ask(address, query)], "with ranks"
        shown = ask(address, "rankmem_rank_used_bytes")
        assert len(shown) == 2 < float(ask(address, "rankmem_rank_devices")[0]["value"][1])


@pytest.mark.long
def test_each_alert_fires_once_for_real(tmp_path: Path) -> None:
    """With the file's own expressions; only its times are shorter, so that the test is."""
    shorter = {"for: 1m": "for: 1s", "for: 2m": "for: 1s", "for: 5m": "for: 1s", "for: 15m": "for: 1s",
               "[10m]": "[20s]", "[1h]": "[10s]"}  # fmt: skip
    rules = RULES.read_text("utf-8")
    for given, short in shorter.items():
        assert given in rules
        rules = rules.replace(given, short)
    aggregator = opened(tmp_path)
    with prometheus(tmp_path, aggregator.metrics_address, rules) as address:

        def firing(name: str) -> bool:
            alerts = get(address, "/api/v1/alerts")["alerts"]
            return any(a["labels"]["alertname"] == name and a["state"] == "firing" for a in alerts)

        until(lambda: ask(address, "rankmem_serving"))
        source = RankSource()  # its events are of 2025
        with IngestClient(aggregator.address) as client:
            client.open(source)
            client.send(batch=source.batch(100))
            client.acks(1)
            until(lambda: firing("RankmemLags"))
            following = source.batch(100)
            client.send(batch=source.batch(100))  # one too early
            assert client.reply().refusal.code == "conflict"
            until(lambda: firing("RankmemRefuses"))
            with (tmp_path / "filling").open("wb") as filling:
                until(lambda: _fill(filling.fileno()) or firing("RankmemDiskSoonFull"))
        assert not firing("RankmemNotServing")
        with IngestClient(aggregator.address) as client, no_file_grows():
            client.open(source)
            client.send(batch=following)
            until(lambda: firing("RankmemNotServing"))
        assert not firing("RankmemGone")
        aggregator.close()
        until(lambda: firing("RankmemGone"))


def _fill(descriptor: int) -> None:
    """Takes 16 MiB more of the disk, without writing them."""
    os.posix_fallocate(descriptor, os.fstat(descriptor).st_size, 16 << 20)
