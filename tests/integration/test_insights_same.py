"""Insights say the same of a file, of the lake made of it, and of aggregators that serve either.

CI asks those that ask in a way of their own; ``diagnose`` asks what the others do.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from constructed import empty_database
from insights_page import JOBS, asked
from rankmem_aggregator import connect
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.lake.import_ import import_database
from rankmem_aggregator.server import aggregator as server
from rankmem_cli.main import app
from repetitions import PROFILE, long_but

PART_ROWS = 60
"""So small that the lake is cut by hosts and by time."""

OPTIONS = {
    "oom": ["--why"],
    "diff": ["main", "pull-request"],
    "fit": ["--batch", "64,128", "--recorded", "8,16", "--in", "1GiB", "--as", "cuda"],
}
"""With which the command line asks the same."""


@pytest.mark.parametrize("verb", long_but(JOBS, "diagnose", "diff", "oom", "fit"))
def test_a_file_an_aggregator_and_a_lake_give_the_same_answer(verb: str, tmp_path: Path) -> None:
    path = tmp_path / "job.duckdb"
    with empty_database(str(path)) as connection:
        JOBS[verb](connection)
    lake = tmp_path / "job.lake"
    import_database(path, str(lake), part_rows=PART_ROWS)
    with connect(path) as queries:
        expected = asked(queries, verb)
    assert expected.verdict == "finding"
    assert expected.rows.num_rows > 1
    with connect(f"lake:{lake}") as queries:
        assert asked(queries, verb) == expected
    is_printed_of_all = verb != "diagnose" or PROFILE == "long"  # which would ask everything twice more
    printed = {shown(verb, "--db", str(path))}
    if is_printed_of_all:
        printed.add(shown(verb, "--lake", str(lake)))
    with (
        server.open(AggregatorConfig(database_path=path, listen="127.0.0.1:0")) as running,
        connect(running.address) as queries,
    ):
        assert asked(queries, verb) == expected
        if is_printed_of_all:
            printed.add(shown(verb, "--aggregator", running.address))
    serving_a_lake = AggregatorConfig(lake=str(lake), listen="127.0.0.1:0")
    with server.open(serving_a_lake) as running, connect(running.address) as queries:
        assert asked(queries, verb) == expected
    assert len(printed) == 1
    assert printed.pop().startswith(expected.sentence)


def shown(verb: str, *source: str) -> str:
    """What the command line prints, from a file, an aggregator or a lake, whose name its commands repeat."""
    done = CliRunner().invoke(app, [verb, *OPTIONS.get(verb, ()), *source])
    assert done.exit_code == (1 if verb == "diff" else 0), done.output
    return done.stdout.replace(f" {shlex.join(source)}", "")


def test_an_engine_puts_the_parts_of_the_hosts_together(tmp_path: Path) -> None:
    from rankmem_aggregator.lake.scattered import ScatteredQueries

    path, lake = tmp_path / "job.duckdb", tmp_path / "job.lake"
    with empty_database(str(path)) as connection:
        JOBS["imbalance"](connection)
    import_database(path, str(lake), part_rows=PART_ROWS)
    with connect(path) as queries:
        expected = asked(queries, "imbalance")
    with ScatteredQueries(f"lake:{lake}", "processes:2", worth_bytes=0) as queries:
        assert asked(queries, "imbalance") == expected
