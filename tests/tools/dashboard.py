"""deploy/grafana/rankmem.json, made with Grafana's own library: what a dashboard may hold it checks by types.

Stage: documentation. In: the panels below; out: the file.

Run as ``python tests/tools/dashboard.py`` (make docs).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.builders import dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef, GridPos

FILE: Final = Path(__file__).resolve().parents[2] / "deploy" / "grafana" / "rankmem.json"
SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
COLUMNS: Final = 24
"""Of Grafana's grid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A panel with its queries: PromQL, and the name of each series."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "none"
    description: str = ""


NOW: Final = (
    Panel(
        title="Serving",
        queries=(("rankmem_serving", "serving"),),
        description="1 while batches can be stored.",
    ),
    Panel(title="Ranks alive", queries=(("rankmem_ranks_alive", "ranks"),)),
    Panel(title="Sessions", queries=(("rankmem_sessions", "sessions"),)),
    Panel(title="Shippers", queries=(("rankmem_streams", "shippers"),)),
    Panel(
        title="Longest lag",
        queries=(("rankmem_lag_max_seconds", "lag"),),
        unit="s",
        description="Of the ranks alive, at their last batch.",
    ),
    Panel(title="Disk free", queries=(("rankmem_disk_free_bytes", "free"),), unit="bytes"),
)
RANK: Final = "{{session}} {{rank}} {{device}}"
RANKS: Final = (
    Panel(
        title="Live memory of ranks",
        queries=(("rankmem_rank_used_bytes", RANK),),
        unit="bytes",
        description="Of the N devices of ranks that hold most: rankmem serve --metrics-ranks N. Allocated; "
        "on cpu requested. A device keeps its place for five minutes.",
    ),
    Panel(
        title="Their highest so far",
        queries=(("rankmem_rank_peak_bytes", RANK),),
        unit="bytes",
        description="Since this aggregator heard of the rank, also between two scrapes.",
    ),
    Panel(
        title="Reserved, not allocated",
        queries=(("rankmem_rank_reserved_bytes - rankmem_rank_used_bytes", RANK),),
        unit="bytes",
        description="What the caching allocator holds and does not use. None on cpu.",
    ),
    Panel(
        title="All ranks together",
        queries=(("rankmem_ranks_used_bytes", "held on all devices"),),
        unit="bytes",
        description="Of all ranks alive, those without a series of their own among them.",
    ),
    Panel(
        title="Devices of ranks",
        queries=(("rankmem_rank_devices", "alive"), ("rankmem_rank_devices_shown", "with series here")),
    ),
    Panel(
        title="From the highest to the lowest shown",
        queries=(
            ("max by (session) (rankmem_rank_used_bytes)", "{{session}} highest"),
            ("min by (session) (rankmem_rank_used_bytes)", "{{session}} lowest"),
        ),
        unit="bytes",
    ),
)
AGGREGATOR: Final = (
    Panel(
        title="Events stored",
        queries=(("rate(rankmem_events_total[1m])", "events/s"),),
        unit="cps",
    ),
    Panel(
        title="From event to stored",
        queries=(
            ("histogram_quantile(0.5, rate(rankmem_lag_seconds_bucket[5m]))", "p50"),
            ("histogram_quantile(0.99, rate(rankmem_lag_seconds_bucket[5m]))", "p99"),
        ),
        unit="s",
    ),
    Panel(
        title="Commits",
        queries=(
            ("histogram_quantile(0.5, rate(rankmem_commit_seconds_bucket[5m]))", "p50"),
            ("histogram_quantile(0.99, rate(rankmem_commit_seconds_bucket[5m]))", "p99"),
        ),
        unit="s",
        description="Those with a checkpoint take longest.",
    ),
    Panel(
        title="Bytes",
        queries=(
            ("rate(rankmem_wire_bytes_total[1m])", "received"),
            ("rate(rankmem_decoded_bytes_total[1m])", "decoded"),
        ),
        unit="Bps",
    ),
    Panel(
        title="Queue",
        queries=(("rankmem_queue_batches", "batches"), ("rankmem_queries", "client queries")),
    ),
    Panel(
        title="Batches and errors",
        queries=(
            ("rate(rankmem_batches_total[1m])", "{{outcome}}"),
            ("sum by (code) (rate(rankmem_errors_total[1m]))", "{{code}}"),
            ("rate(rankmem_commit_retries_total[1m])", "commit tried again"),
            ("rate(rankmem_damaged_total[1m])", "came damaged"),
        ),
        unit="cps",
    ),
    Panel(
        title="Database",
        queries=(("rankmem_database_bytes", "file"), ("rankmem_log_bytes", "log")),
        unit="bytes",
    ),
    Panel(
        title="Memory",
        queries=(("rankmem_resident_bytes", "resident"), ("rankmem_queue_bytes", "queue")),
        unit="bytes",
    ),
    Panel(
        title="Sessions deleted for limits",
        queries=(("increase(rankmem_sessions_pruned_total[1h])", "an hour"),),
    ),
)


def text() -> str:
    """The file, made anew."""
    made = (
        dashboard.Dashboard("rankmem aggregator")
        .uid("rankmem")
        .tags(["rankmem"])
        .editable()
        .refresh("15s")
        .time("now-6h", "now")
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )
    top = _add(made, NOW, first_id=1, top=0, width=4, height=4)
    top = _add(made, RANKS, first_id=101, top=top, width=8, height=8)
    _add(made, AGGREGATOR, first_id=201, top=top, width=8, height=7)
    found = json.loads(json.dumps(made.build(), cls=JSONEncoder), object_hook=_without_nothing)
    return json.dumps(found, indent=1, sort_keys=True) + "\n"


def _without_nothing(found: dict[str, object]) -> dict[str, object]:
    """The library writes null for what was not said, and Grafana takes null for an answer."""
    return {name: value for name, value in found.items() if value is not None}


def _add(
    made: dashboard.Dashboard, panels: tuple[Panel, ...], *, first_id: int, top: int, width: int, height: int
) -> int:
    """Adds panels of one size line by line; returns the first free line."""
    in_line = COLUMNS // width
    for place, panel in enumerate(panels):
        builder = stat.Panel() if panels is NOW else timeseries.Panel()
        builder.title(panel.title).description(panel.description).datasource(SOURCE).unit(panel.unit).min(0)
        builder.id(first_id + place).grid_pos(
            GridPos(x=place % in_line * width, y=top + place // in_line * height, w=width, h=height)
        )
        for number, (expression, legend) in enumerate(panel.queries):
            query = prometheus.Dataquery().expr(expression).legend_format(legend).ref_id("ABCDEFGH"[number])
            builder.with_target(query.datasource(SOURCE))
        made.with_panel(builder)
    return top + -(-len(panels) // in_line) * height


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
