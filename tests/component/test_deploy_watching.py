"""The dashboard and the alerts ask for metrics that an aggregator has, with labels that they carry."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.server import aggregator as server

DEPLOY = Path(__file__).parents[2] / "deploy"
NAME = re.compile(r"\brankmem_[a-z_]+")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names of all series, also those without a sample so far."""
    path = tmp_path_factory.mktemp("metrics") / "m.duckdb"
    config = AggregatorConfig.from_environment(
        {}, database_path=path, listen="127.0.0.1:0", metrics="127.0.0.1:0", metrics_ranks=1
    )
    with server.open(config) as aggregator:
        reply = urllib.request.urlopen(f"http://{aggregator.metrics_address}/metrics", timeout=30)
        text = reply.read().decode()
        reply.close()
    families = list(text_string_to_metric_families(text))
    without = {family.name for family in families if not family.samples}  # of ranks: there are none yet
    return without | {sample.name for family in families for sample in family.samples}


def test_every_panel_asks_for_what_there_is(served: set[str]) -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "rankmem.json").read_text("utf-8"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = {name for expression in expressions for name in NAME.findall(expression)}
    assert len(expressions) > 15
    assert asked <= served, sorted(asked - served)
    totals = {name for name in served if name.startswith("rankmem_") and name.endswith("_total")}
    assert totals - asked <= {"rankmem_rows_total", "rankmem_commits_total"}, "a total that nobody would see"


def test_every_alert_asks_for_what_there_is(served: set[str]) -> None:
    text = (DEPLOY / "rankmem-alerts.yml").read_text("utf-8")
    asked = {name for line in text.splitlines() if "expr:" in line for name in NAME.findall(line)}
    assert len(asked) >= 4
    assert asked <= served, sorted(asked - served)


def test_the_dashboard_in_the_tree_is_current() -> None:
    dashboard = pytest.importorskip("dashboard", reason="needs grafana-foundation-sdk")
    assert dashboard.FILE.read_text("utf-8") == dashboard.text(), "make docs"


def test_panels_do_not_overlap() -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "rankmem.json").read_text("utf-8"))
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
