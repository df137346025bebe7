"""The demo's answers: each question with the command that answers it.

Stage: ``rankmem demo``, after the training. In: the destination of the session. Out: a tour on stdout:
heading, command, table. It calls the same functions as the verbs, so it shows what they show.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from rankmem_cli.args.options import POINTS_DEFAULT
from rankmem_cli.run.destination import Destination
from rankmem_cli.show import columns
from rankmem_cli.show.completeness import note_incompleteness
from rankmem_cli.show.render import Format, console_for, show_table
from rankmem_cli.show.session import session_facts
from rankmem_cli.show.table import plain_columns
from rankmem_cli.show.timeline import show_timeline

if TYPE_CHECKING:
    import pyarrow as pa

    from rankmem_aggregator.query.next_commands import GivenOptions
    from rankmem_aggregator.query.queries import Queries
    from rankmem_cli.show.table import Column

ROWS: Final = 6
"""Rows of each answer: enough for an impression."""
EXAMPLE_SQL: Final = """\
SELECT step, phase, count(*) AS blocks, sum(size_bytes) AS bytes
FROM allocation
WHERE session_id = (SELECT max(session_id) FROM session) AND rank = 0
GROUP BY step, phase
ORDER BY bytes DESC
LIMIT 6"""


def print_answers(destination: Destination, session_id: str, is_delivered: bool) -> None:
    """Writes the tour of a session to stdout."""
    from rankmem_aggregator.query.open import open_queries

    with open_queries(destination.address, destination.credentials) as queries:
        _Tour(queries, session_id, destination.given).print()


class _Tour:
    def __init__(self, queries: Queries, session_id: str, given: GivenOptions) -> None:
        self._queries = queries
        self._given = given
        self._facts = session_facts(queries, session_id)

    def print(self) -> None:
        queries, session_id, started_ns = self._queries, self._facts.session_id, self._facts.started_ns
        self._answer("Which jobs are stored?", "sessions", queries.sessions(), columns.sessions())
        ranks = queries.ranks(session_id)
        self._answer("Did every rank report? Is anything missing?", "ranks", ranks, columns.ranks(started_ns))
        peaks = queries.peak(session_id)
        self._answer("Which rank peaked, and when?", "peak", peaks, columns.peak(started_ns))
        job_peak = queries.job_peak(session_id)
        self._answer(
            "When was the sum of all ranks highest?", "job-peak", job_peak, columns.job_peak(started_ns)
        )
        if peaks.num_rows:
            self._print_worst(peaks.to_pylist()[0]["rank"])
        self._answer_sql()
        note_incompleteness(queries, self._facts)
        self._heading("All of it in a browser, down to one event:")
        self._command("page")
        self._line(f"Everything is stored in {self._given.source[0][1]}; rankmem --help lists the commands.")

    def _print_worst(self, rank: int) -> None:
        queries, session_id = self._queries, self._facts.session_id
        self._answer(
            f"Which operators held the memory of rank {rank} at its peak?",
            f"ops --rank {rank}",
            queries.ops(session_id, rank=rank),
            columns.ops(),
        )
        by_line = queries.ops(session_id, rank=rank, by="line")
        self._answer("And which source lines?", f"ops --rank {rank} --by line", by_line, columns.ops())
        self._print_categories(rank)
        live = queries.live(rank, session_id)
        self._answer(
            f"Which blocks were alive then (the largest of {live.num_rows})?",
            f"live --rank {rank} --at peak",
            live,
            columns.live(self._facts.started_ns),
        )

    def _print_categories(self, rank: int) -> None:
        queries, session_id = self._queries, self._facts.session_id
        held = queries.ops(session_id, rank=rank, by="category")
        self._answer(
            "Which categories did the bytes belong to?",
            f"ops --rank {rank} --by category",
            held,
            columns.ops(),
        )
        self._heading("And over time?")
        self._command(f"timeline --rank {rank} --by category")
        curves = queries.timeline(session_id, by="category", rank=rank, points=POINTS_DEFAULT)
        show_timeline(curves, "category", self._facts, output=Format.TABLE)

    def _answer_sql(self) -> None:
        rows = self._queries.sql(EXAMPLE_SQL)
        self._heading("Anything else, in SQL:")
        self._command(f'sql "{EXAMPLE_SQL}"')
        show_table(rows, plain_columns(rows))

    def _answer(self, question: str, command: str, rows: pa.Table, shown: list[Column]) -> None:
        self._heading(question)
        self._command(command)
        show_table(rows.slice(0, ROWS), shown)

    def _heading(self, text: str) -> None:
        from rich.text import Text

        console_for(sys.stdout).print(Text(f"\n{text}", style="bold"))

    def _command(self, command: str) -> None:
        self._line(f"$ {self._given.complete(f'rankmem {command}')}")

    def _line(self, text: str) -> None:
        from rich.text import Text

        console_for(sys.stdout).print(Text(text, style="dim"), soft_wrap=True)
