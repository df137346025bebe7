"""One request's reading: the session it is about, and the statements it asks.

Stage: page, in the thread of a request. In: a ``Queries`` that the request has for itself; out: Arrow
tables whose metadata carries the facts of an answer. Times of answers are ns since the session's start
(``origin_ns``), so that a browser's numbers hold them exactly: those of SQL are on the common clock.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from rankmem_aggregator.page.as_sql import as_sql, named_in
from rankmem_aggregator.page.shared_rows import SharedRows
from rankmem_aggregator.query.asking import answered
from rankmem_aggregator.query.missing import and_later, with_missing
from rankmem_aggregator.query.next_commands import GivenOptions
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.query.types import SessionId, Value
from rankmem_aggregator.sql import optional_of, page_text
from rankmem_protos.errors import Code, RankmemError

FACTS_KEY: Final = b"rankmem"
"""In the metadata of an answer's schema: a JSON object of its facts."""
TABLES_KEPT: Final = 64
"""Of the rows that many answers begin with, a few tables a session: at 10,000 ranks some 1 MB each."""

_kept = SharedRows(TABLES_KEPT)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSession:
    """The session of a request, as of its watermark."""

    session_id: SessionId
    origin_ns: int
    """Its start on the common clock: the zero of every time of an answer."""
    ended: bool
    watermark: str
    """Changes whenever anything of the session does."""
    stale: str = ""
    """What this may lack, see ``Queries.stale``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """A device of a rank in an attempt: what curves, blocks and segments belong to."""

    attempt: int
    rank: int
    device: str
    offset_ns: int
    """Add to the host's times for the common clock."""
    peak_bytes: int
    peak_seq: int
    peak_ns: int
    """On the common clock."""
    host_name: str
    started_ns: int | None = None
    """Of the process, on the common clock."""
    ended_ns: int | None = None
    """None while it runs."""


@dataclass(slots=True, kw_only=True)
class Reading:
    """What an answer reads from. In one thread."""

    queries: Queries
    session: PageSession
    others: Mapping[str, PageSession] = field(default_factory=dict)
    """Other sessions of the request, by id."""
    opened_as: GivenOptions | None = None
    """How its commands name the store, where not as the command that opened it."""
    _shown: list[str] = field(default_factory=list)

    @property
    def given(self) -> GivenOptions:
        """Completes the commands of its answers: the page is of one session, which need not be the newest."""
        store = self.opened_as or self.queries.given_options
        return replace(store, session=str(self.session.session_id))

    def ask(self, name: str, /, **parameters: Value) -> pa.Table:
        """The rows of ``sql/page/{name}.sql`` for the session, with ``$session`` filled in."""
        text, given = self._statement(name, parameters)
        return answered(self.queries, text, given)

    def share(self, name: str, /, **parameters: Value) -> pa.Table:
        """The same rows, asked once a state of the session for all answers that begin with them."""
        return _kept.get((*self._state(), name, repr(parameters)), lambda: self.ask(name, **parameters))

    def kept(self, name: str, find: Callable[[], pa.Table]) -> pa.Table:
        """A small table of this name that is found once a state of the session."""
        return _kept.get((*self._state(), "kept", name), find)

    def show(self, name: str, /, **parameters: Value) -> pa.Table:
        """The rows of :meth:`ask`, where the panel shows them: the statement is the panel's, as SQL."""
        text, given = self._statement(name, parameters)
        self._shown.append(as_sql(text, given))
        return answered(self.queries, text, given)

    def _statement(self, name: str, parameters: Mapping[str, Value]) -> tuple[str, dict[str, Value]]:
        return statement(name, {"session": self.session.session_id, **parameters})

    def shown_as(self, statement: str) -> None:
        """Gives the panel's SQL where its rows come from one of the ``Queries``' own questions."""
        self._shown.append(statement)

    def track(self, rank: int, attempt: int | None = None, device: str | None = None) -> Track:
        """The device of a rank that a request means: by default the one that stood highest.

        Raises:
            RankmemError: NOT_FOUND.
        """
        rows = self.share("tracks")
        for name, value in (("rank", rank), ("attempt", attempt), ("device", device)):
            if value is not None:
                rows = rows.filter(pc.equal(rows[name], value))
        if not rows.num_rows:
            what = f"rank {rank}" + (f", attempt {attempt}" if attempt is not None else "")
            what += f" with device {device}" if device is not None else ""
            raise RankmemError(
                Code.NOT_FOUND,
                f"session {self.session.session_id} has no events of {what}",
                "choose another rank; rankmem ranks lists them",
            )
        return Track(**rows[:1].to_pylist()[0])

    def other(self, session_id: str) -> PageSession:
        """Another session that the request names; its route has it in ``others``."""
        return self.session if session_id == self.session.session_id else self.others[session_id]

    def absolute(self, time_ns: int | None) -> int | None:
        """A time of a request on the common clock."""
        return None if time_ns is None else time_ns + self.session.origin_ns

    def relative(self, rows: pa.Table, *columns: str) -> pa.Table:
        """The rows with these columns in ns since the session's start."""
        origin = pa.scalar(self.session.origin_ns, pa.int64())
        for name in columns:
            place = rows.schema.get_field_index(name)
            rows = rows.set_column(place, name, pc.subtract(rows[name].cast(pa.int64()), origin))
        return rows

    def answer(self, rows: pa.Table, *, exact: bool, source: str, **facts: Any) -> pa.Table:
        """The rows with the facts that every panel shows or needs, and what is missing from the session.

        Args:
            exact: nothing of what was recorded is left out of or rounded in the rows.
            source: the table or view they were read from.
            facts: more, for this kind of answer; JSON values.
        """
        told = {
            "exact": exact,
            "source": source,
            "origin_ns": str(self.session.origin_ns),
            "watermark": self.session.watermark,
            "sql": ";\n\n".join(self._shown),
            **facts,
        }
        missing = self._missing().schema.metadata
        metadata = {**(rows.schema.metadata or {}), **missing, FACTS_KEY: json.dumps(told).encode()}
        return rows.replace_schema_metadata(metadata)

    def _missing(self) -> pa.Table:
        """A table without columns whose metadata says what is missing: of a session that ended found once.

        That a store is away is not kept: it does not move the watermark.
        """
        session = self.session

        def find() -> pa.Table:
            return with_missing(pa.table({}), self.queries.recent_missing(session.session_id))

        known = _kept.get((*self._state(), "missing"), find) if session.ended else find()
        return and_later(known, self.queries.stale or session.stale)

    def _state(self) -> tuple[str, str, str]:
        return self.queries.target, self.session.session_id, self.session.watermark


def statement(name: str, given: dict[str, Value]) -> tuple[str, dict[str, Value]]:
    """The text of ``sql/page/{name}.sql`` for these parameters, and those that it names."""
    absent = frozenset(each for each in optional_of(name) if given[each] is None)
    text = page_text(name, absent)
    return text, named_in(text, given) if optional_of(name) else given


def of_database(rows: pa.Table, *, source: str, sql: str, **facts: Any) -> pa.Table:
    """An answer about the whole database with its facts; see :meth:`Reading.answer`."""
    told = {"exact": True, "source": source, "sql": sql, **facts}
    metadata = {**(rows.schema.metadata or {}), FACTS_KEY: json.dumps(told).encode()}
    return rows.replace_schema_metadata(metadata)


def facts_of(answer: pa.Table) -> dict[str, Any]:
    """The facts of an answer."""
    return dict(json.loads((answer.schema.metadata or {})[FACTS_KEY]))
