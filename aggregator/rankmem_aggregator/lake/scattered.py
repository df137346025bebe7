"""A lake whose larger questions an engine answers: the same rows as from one process.

Stage: query, in the reader's process. In: a lake and an engine; out: Arrow. A named query's head says how it
can be cut (``Scatter``): by hosts its answers over parts are put together and ordered as it orders; what
adds up over ranks, or rests on the highest sum over them, gets the summands from hosts, that sum from slices
of time, and is asked here. Everything else, SQL of the user too, runs in this process, as does what is too
small to gain.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import duckdb
import pyarrow as pa

from rankmem_aggregator.lake.engine import Engine
from rankmem_aggregator.lake.engines import open_engine
from rankmem_aggregator.lake.kernel import Task
from rankmem_aggregator.lake.layout import OPENING
from rankmem_aggregator.lake.parts import HostPart
from rankmem_aggregator.lake.peak import GROUP_PEAK, Best, slices_of
from rankmem_aggregator.lake.queries import LakeQueries
from rankmem_aggregator.lake.seeded import SUMMANDS, SeededInstance
from rankmem_aggregator.query.local import BATCH_ROWS, InstanceQueries
from rankmem_aggregator.query.types import Parameters
from rankmem_aggregator.sql import named_scatters
from rankmem_aggregator.store.instance import ISOLATED
from rankmem_aggregator.store.reading_instance import needed_names
from rankmem_protos.errors import Code, RankmemError

WORTH_BYTES: Final = 64 << 20
"""Of files that a question may read: below it one process takes a second, a cold worker half of that."""
PARTS_PER_WORKER: Final = 2
"""A worker that is done takes from one that is not; a part costs the views and the metadata again."""
SLICES_PER_WORKER: Final = 8
"""More slices have closer bounds, and each costs what a part does."""
_GROUPS_OF: Final = {"peak_by_ranks": "by"}
"""By named query the parameter that says of which groups of ranks the peak is; of others the job."""
_ORDER: Final = "\nORDER BY "
_PARAMETER: Final = re.compile(r"\$(\w+)")
_HOSTS: Final = """
SELECT rank, host_uid FROM rank_info
WHERE session_id = $session
ORDER BY rank, attempt
"""


class ScatteredQueries(LakeQueries):
    """A lake, asked through an engine.

    Args:
        address: of the lake, as for :class:`LakeQueries`.
        engine: an engine, or its address, see :func:`open_engine`; closed with this.
        worth_bytes: what is smaller is asked here, see :data:`WORTH_BYTES`.

    Raises:
        RankmemError: as :class:`LakeQueries` and :func:`open_engine`.
    """

    def __init__(self, address: str, engine: str | Engine, *, worth_bytes: int = WORTH_BYTES) -> None:
        self.engine: Engine = open_engine(engine) if isinstance(engine, str) else engine
        self._worth_bytes = worth_bytes
        self._is_pinned = False
        """While a question is asked: all its tasks see one version of the lake."""
        super().__init__(address)

    def close(self) -> None:
        self.engine.close()
        super().close()

    def sql(self, text: str, parameters: Parameters | None = None) -> pa.Table:
        given = parameters or {}
        session = given.get("session")
        if text in named_scatters() and isinstance(session, str):
            self._refresh()
            self._is_pinned = True
            try:
                rows = self._scattered(text, given, session)
            finally:
                self._is_pinned = False
            if rows is not None:
                return rows
        return super().sql(text, parameters)

    def _scattered(self, text: str, parameters: Parameters, session: str) -> pa.Table | None:
        """The answer of a named query by an engine; None: one process has to give it, or gives it sooner."""
        name, scatter = named_scatters()[text]
        if session in self._instance_of(session).lacking_sessions:
            return None  # one process sees what the question needs of what is here
        if scatter == "none" or not self._is_worth(text, parameters, session):
            return None
        if scatter == "hosts":
            return self.by_hosts(text, parameters, session)
        if scatter == "sums":
            return self.by_sums(text, parameters, session, SUMMANDS[name])
        if parameters.get("shares") is not None:
            return None  # the peak is known
        by = parameters[_GROUPS_OF[name]] if name in _GROUPS_OF else "job"
        return self.by_time(text, parameters, session, str(by))

    def _refresh(self) -> None:
        if not self._is_pinned:
            super()._refresh()

    def stream(self, text: str, parameters: Parameters | None = None) -> Iterator[pa.RecordBatch]:
        if text not in named_scatters():
            yield from super().stream(text, parameters)
            return
        rows = self.sql(text, parameters)
        yield from rows.to_batches(BATCH_ROWS) or [pa.RecordBatch.from_pylist([], schema=rows.schema)]

    def by_hosts(self, text: str, parameters: Parameters, session: str) -> pa.Table | None:
        """The answers of a statement over parts of a session's hosts, put together; None: there is one part.

        Args:
            text: a statement about one session whose answer is the union of these; the columns of its last
                ORDER BY are those of its answer.
            parameters: its parameters.
            session: the session's full id.
        """
        parts = parts_of(
            self._about(session).sql(_HOSTS, {"session": session}).to_pylist(),
            session,
            PARTS_PER_WORKER * self.engine.workers,
        )
        if len(parts) < 2:
            return None
        tasks = [
            Task(address=self._files.root, version=self.version, part=part, sql=text, parameters=parameters)
            for part in parts
        ]
        answers = {task.part: rows for task, rows in self._run(tasks)}
        return ordered(pa.concat_tables([answers[part] for part in parts]), text)

    def by_time(self, text: str, parameters: Parameters, session: str, by: str) -> pa.Table | None:
        """The answer of a statement with the highest sums over ranks from slices; None: one process has to.

        Args:
            text: a statement that reads the macro group_peak, of this session and these groups alone.
            parameters: its parameters.
            session: the session's full id.
            by: the groups of ranks.
        """
        if not self._catalog.has_openings(session):
            return None
        openings = self._instance_of(session).rows_of(OPENING)
        most = SLICES_PER_WORKER * self.engine.workers
        slices = slices_of(self._about(session).sql, openings, session, by, most)
        if slices is None:
            return None
        best = Best(slices=slices)
        given = {"session": session, "by": by}
        tasks = (
            Task(address=self._files.root, version=self.version, part=part, sql=GROUP_PEAK, parameters=given)
            for part in best.worth_asking()
        )
        schema: pa.Schema | None = None
        try:
            for task, answer in self._run(tasks):
                schema = answer.schema
                best.take(task.part.number, answer)  # type: ignore[union-attr]
        except RankmemError as exc:
            if exc.code is not Code.CONFLICT:
                raise
            return None  # times of a log go back: slices of time are none of the log
        if schema is None:
            return None
        rows = [row for of_group in best.rows.values() for row in of_group]
        return self._seeded(
            text, parameters, session, {"group_peak": pa.Table.from_pylist(rows, schema=schema)}
        )

    def by_sums(
        self, text: str, parameters: Parameters, session: str, summands: Mapping[str, str]
    ) -> pa.Table | None:
        """The answer of a statement that adds up over ranks what parts by host answer; None: one part.

        Args:
            text: a statement about one session.
            parameters: its parameters.
            session: the session's full id.
            summands: by table macro that it reads the statement that has its rows, see :data:`SUMMANDS`.
        """
        found: dict[str, pa.Table] = {}
        for macro, statement in summands.items():
            given = {name: parameters[name] for name in _PARAMETER.findall(statement)}
            rows = self.by_hosts(statement, given, session)
            if rows is None:
                return None
            found[macro] = rows
        return self._seeded(text, parameters, session, found)

    def _seeded(
        self, text: str, parameters: Parameters, session: str, answers: Mapping[str, pa.Table]
    ) -> pa.Table:
        """A statement's answer from this process, where macros have their answers already."""
        instance = SeededInstance(self._files, self._catalog.about(session), answers)
        with InstanceQueries(self.target, instance) as queries:
            return queries.sql(text, parameters)

    def _about(self, session: str) -> InstanceQueries:
        """This process, over the files of a session."""
        return InstanceQueries(self.target, self._instance_of(session))

    def _run(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, pa.Table]]:
        with self._interrupts.running(self.engine.stop):
            yield from self.engine.run(tasks)

    def _is_worth(self, text: str, parameters: Parameters, session: str) -> bool:
        """Whether a statement about a session reads enough; one about a rank skips the files of others."""
        if parameters.get("rank") is not None or session not in self._session_ids:
            return False
        names = needed_names(text)
        read = sum(f.size_bytes for f in self._catalog.of_session(session) if f.table_name in names)
        return read >= self._worth_bytes


def parts_of(ranks: list[dict[str, Any]], session: str, most: int) -> list[HostPart]:
    """A session's ranks in parts of about equal size, the first with the rows of unknown ranks.

    Ranks of one host are in one part, and all attempts of a rank, wherever they ran: answers compare both.

    Args:
        ranks: rank and host_uid of each attempt, ordered by rank.
        session: its full id.
        most: parts, at most.
    """
    root: dict[Any, Any] = {}

    def find(key: Any) -> Any:
        while root.setdefault(key, key) != key:
            key = root[key]
        return key

    for row in ranks:
        root[find(("host", row["host_uid"]))] = find(("rank", row["rank"]))
    together: dict[Any, list[dict[str, Any]]] = {}
    for row in ranks:
        together.setdefault(find(("rank", row["rank"])), []).append(row)
    chosen: list[list[dict[str, Any]]] = [[] for _ in range(min(most, len(together)))]
    size = -(-len(ranks) // max(1, len(chosen)))
    number = 0
    for group in together.values():
        if chosen[number] and len(chosen[number]) + len(group) > size and number + 1 < len(chosen):
            number += 1
        chosen[number] += group
    return host_parts([part for part in chosen if part], session)


def host_parts(chosen: list[list[dict[str, Any]]], session: str) -> list[HostPart]:
    """The parts of these ranks; the first is all that is in no other."""
    of_others = sorted({row["rank"] for part in chosen[1:] for row in part})
    return [
        HostPart(
            session_id=session,
            ranks=tuple(sorted({row["rank"] for row in part})) if number else tuple(of_others),
            is_rest=number == 0,
            host_uids=frozenset(row["host_uid"] for row in part),
        )
        for number, part in enumerate(chosen)
    ]


def ordered(rows: pa.Table, text: str) -> pa.Table:
    """Rows in the order that a statement ends with, each as it was.

    Args:
        rows: its answers over parts.
        text: the statement; without a last ORDER BY the rows stay as they are.
    """
    _, found, order = text.rpartition(_ORDER)
    if not found or not rows.num_rows:
        return rows
    with duckdb.connect(":memory:", config={**ISOLATED}) as connection:
        connection.register("rows_of_parts", rows.append_column("row_place", pa.array(range(rows.num_rows))))
        places = connection.sql(f"SELECT row_place FROM rows_of_parts ORDER BY {order}")
        return rows.take(places.to_arrow_table()["row_place"])
