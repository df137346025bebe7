"""What every question to a store needs: SQL, named queries, the session that is meant, what is missing.

Stage: query, in the reader's process. In: a statement, or the name of a query with its parameters. Out: Arrow
tables, those about a session with what is missing from it in their metadata. Never writes.
"""

from __future__ import annotations

import abc
import contextlib
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from rankmem_aggregator.query.missing import and_later, with_missing
from rankmem_aggregator.query.next_commands import GivenOptions
from rankmem_aggregator.query.not_here import AN_AGGREGATOR
from rankmem_aggregator.query.older_version import check_groups, explained
from rankmem_aggregator.query.types import Parameters, SessionId, Value
from rankmem_aggregator.sql import query_text
from rankmem_protos.errors import Code, RankmemError

Row = dict[str, Any]

MISSING_FRESH_S: Final = 1.0
"""What is missing travels with each answer and takes longer to find than a small answer: answers within this
time share it. Stored data is as old as that itself."""
SESSIONS_NAMED_MAX: Final = 5
"""Ids in a message about an ambiguous beginning: more do not help."""


class Asking(abc.ABC):
    """A store that is asked. Not safe for use by several threads at once.

    An answer about a session has in its schema's metadata whether it is exact: ``complete`` ("False" where
    figures of bytes may be wrong, "None" where that is not known) and ``missing`` (a JSON list of lines,
    which ``query.missing.missing_of`` reads). A result of :meth:`sql` has not: it may be about any session.
    """

    target: str
    """What was opened: the path or the address, for messages."""
    aggregator: str = AN_AGGREGATOR
    """To which the hosts of its sessions ship, for hints."""
    given_options: GivenOptions = GivenOptions()
    """How the command that opened it named it, for the commands that answers name."""
    stale: str = ""
    """What the last answer may lack since a store is away, in a sentence; empty: nothing."""
    gathers_stale: bool = False
    """Whether ``stale`` is of all answers since it was emptied: of a verb, an export or a page's request."""
    _goes_on: bool = False
    """Whether the next statement is of the same answer as the last."""
    _answers: dict[tuple[str, str], pa.Table] | None = None
    """Within :func:`each_once`: what was answered, by statement and parameters."""
    _known_missing: tuple[str, float, list[dict[str, Any]]] = ("", 0.0, [])
    """A session, when its missing data was last looked up (monotonic seconds), and that."""

    @abc.abstractmethod
    def sql(self, text: str, parameters: Parameters | None = None) -> pa.Table:
        """The result of one read-only statement.

        Args:
            text: SQL of DuckDB's dialect.
            parameters: values of ``$name`` in the statement.

        Raises:
            RankmemError: INVALID for SQL that does not run, DENIED for a statement that is not a read.
        """

    @abc.abstractmethod
    def stream(self, text: str, parameters: Parameters | None = None) -> Iterator[pa.RecordBatch]:
        """The same, batch by batch; at least one batch, which carries the schema even of an empty result."""

    @abc.abstractmethod
    def copy_to(self, out_path: Path) -> None:
        """Writes a consistent copy of the whole database, also while it is being written; whole or absent.

        Raises:
            RankmemError: CONFLICT if ``out_path`` is there, EXHAUSTED if it does not fit.
        """

    @abc.abstractmethod
    def interrupt(self) -> None:
        """Ends the statement that runs now, which raises EXHAUSTED or UNAVAILABLE; any thread may call it.

        It also refuses (UNAVAILABLE) the statements that follow, until :meth:`allow`: what asks several in a
        row is interrupted at any of them.
        """

    @abc.abstractmethod
    def allow(self) -> None:
        """Lets statements run again after :meth:`interrupt`; the thread that asks calls it."""

    @abc.abstractmethod
    def close(self) -> None:
        """Closes the file or the connection; may be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def session_id(self, session: str | None = None) -> str:
        """The full id of the session that a user means.

        Args:
            session: an id, the beginning of one, or a name (the newest of that name); None for the newest.

        Returns:
            A :class:`SessionId` as it was given; else what is looked up.

        Raises:
            RankmemError: NOT_FOUND where there is none, INVALID where a beginning fits several.
        """
        if isinstance(session, SessionId):
            return session
        matches = self._ask("session_match", session=session).to_pylist()
        return str(self._the_session(matches, session)["session_id"])

    def session_row(self, session: str | None = None) -> dict[str, Any]:
        """The row of ``session_overview`` for the session that a user means.

        Its ``session_id`` is a :class:`SessionId`, so that further questions need not look it up. Arguments
        and errors are those of :meth:`session_id`.
        """
        matches = self._ask("session_row", session=session).to_pylist()
        self._goes_on = False
        row = self._the_session(matches, session)
        return {**row, "session_id": SessionId(row["session_id"])}

    def session_facts(self, session: str | None = None) -> dict[str, Any]:
        """What the session that a user means reports of itself: a row of ``session_facts``.

        A fraction of :meth:`session_row`, which adds peaks and gaps. Its columns: session_id (a
        :class:`SessionId`), name, source, state, started_ns, events, detail, not_recorded, was_reduced.
        Arguments and errors are those of :meth:`session_id`.
        """
        try:
            matches = self._ask("session_facts", session=session).to_pylist()
        except RankmemError as exc:
            if not _lacks(exc, "session_facts"):
                raise
            return self.session_row(session)
        self._goes_on = False
        row = self._the_session(matches, session)
        return {**row, "session_id": SessionId(row["session_id"])}

    def ranks(self, session: str | None = None) -> pa.Table:
        """The ranks of a session. Columns: those of the view ``rank_overview``."""
        return self._answer("ranks", session=self.session_id(session))

    def incompleteness(self, session: str | None = None) -> pa.Table:
        """What is missing from the session's ranks; no row where nothing is known to be.

        Columns: those of the view ``incompleteness``: session_id, attempt, rank, why, what, detail, since_ns,
        since_utc, records, is_bytes, sentence.
        """
        rows = self._missing(self.session_id(session))
        self._goes_on = False
        return rows

    def _missing(self, full_id: str) -> pa.Table:
        try:
            return self._ask("incompleteness", session=full_id)
        except RankmemError as exc:
            if not _lacks(exc, "incompleteness"):
                raise
            return self._ask("incompleteness_older", session=full_id)

    def _of_rank(
        self,
        rows: pa.Table,
        full_id: str,
        rank: int | None,
        *,
        attempt: int | None = None,
        device: str | None = None,
    ) -> pa.Table:
        """The rows; an error where there are none because the session has no such rank, attempt or device."""
        if rows.num_rows or (rank, attempt, device) == (None, None, None):
            return rows
        known = self._ask("ranks", session=full_id).to_pylist()
        whose = f"session {full_id}"
        if rank is not None:
            known = [row for row in known if row["rank"] == rank]
            if not known:
                raise RankmemError(Code.NOT_FOUND, f"no rank {rank} in {whose}", "rankmem ranks")
            whose = f"rank {rank} of {whose}"
        if attempt is not None and attempt not in (row["attempt"] for row in known):
            raise RankmemError(Code.NOT_FOUND, f"no attempt {attempt} of {whose}", "rankmem ranks")
        devices = self._ask("peak", session=full_id, rank=rank, attempt=attempt)["device"].to_pylist()
        if device is not None and device not in devices:
            raise RankmemError(Code.NOT_FOUND, f"no events on device {device} in {whose}", "rankmem peak")
        return rows

    def _the_session(self, matches: Sequence[Row], session: str | None) -> Row:
        # An answer may be about two stores, of which this one need not be the reader's first.
        with self.given_options.in_hints():
            return _the_session(matches, session, self.target)

    def _ask(self, name: str, **parameters: Value) -> pa.Table:
        try:
            # What is missing is told as of now: rows that others are read with may be newer than the first.
            asked = self.sql if name.startswith("incompleteness") else partial(answered, self)
            answer = asked(query_text(name), parameters)
        except RankmemError as exc:
            error = explained(exc, self.target)
            error.hint = self.given_options.complete(error.hint)
            raise error from exc
        self._goes_on = "session" in parameters
        if "by" in parameters:
            by = str(parameters["by"])
            check_groups(answer, by, self.target, lambda: self._knows_group(by))
        return answer

    def _knows_group(self, by: str) -> bool:
        try:
            return bool(self._ask("knows_group", of_group=by)["knows"][0].as_py())
        except RankmemError as exc:
            if exc.code is not Code.UNSUPPORTED:
                raise
            return False

    def _answer(self, name: str, *, session: str, **parameters: Value) -> pa.Table:
        """The rows of a named query about a session, with what is missing from it in the metadata."""
        return self.with_missing(self._ask(name, session=session, **parameters), session)

    def with_missing(self, answer: pa.Table, full_id: str) -> pa.Table:
        """An answer about the session of this full id, with what is missing from it in the metadata."""
        missing = self.recent_missing(full_id)
        self._goes_on = False
        return and_later(with_missing(answer, missing), self.stale)

    def recent_missing(self, full_id: str) -> list[dict[str, Any]]:
        """The rows of ``incompleteness`` for the session of this id, shared by the answers of a moment."""
        of_session, asked_s, missing = self._known_missing
        if of_session != full_id or time.monotonic() - asked_s > MISSING_FRESH_S:
            asked_s, missing = time.monotonic(), self._missing(full_id).to_pylist()
            if not self.stale:
                self._known_missing = full_id, asked_s, missing
        return missing

    def _heard(self, stale: str) -> None:
        """Takes down what the answer of a statement may lack."""
        self.stale = stale or (self.stale if self._goes_on or self.gathers_stale else "")


@contextlib.contextmanager
def each_once(store: Asking) -> Iterator[None]:
    """Within it :func:`answered` asks each statement once: for many questions with parts in common."""
    before = store._answers
    store._answers = {} if before is None else before
    try:
        with one_answer(store):
            yield
    finally:
        store._answers = before


@contextlib.contextmanager
def one_answer(store: Asking) -> Iterator[None]:
    """All that is asked within it is for one answer: ``stale`` is of all of it."""
    before = store.gathers_stale
    if not before:
        store.gathers_stale, store.stale = True, ""
    try:
        yield
    finally:
        store.gathers_stale = before


def answered(store: Asking, text: str, parameters: Parameters | None = None) -> pa.Table:
    """The result of a statement of ours; within :func:`each_once` that of the first time."""
    if store._answers is None:
        return store.sql(text, parameters)
    key = text, repr(sorted((parameters or {}).items()))
    if key not in store._answers:
        store._answers[key] = store.sql(text, parameters)
    return store._answers[key]


def _lacks(error: RankmemError, view: str) -> bool:
    """Whether what was asked is of an older version, which has no such view."""
    return error.code is Code.UNSUPPORTED and view in error.message


def _the_session(matches: Sequence[Row], session: str | None, target: str) -> Row:
    if not matches and session is None:
        raise RankmemError(Code.NOT_FOUND, f"no session in {target}", "record one: rankmem run -- COMMAND")
    if not matches:
        raise RankmemError(Code.NOT_FOUND, f"no session {session!r} in {target}", "rankmem sessions")
    best = [row for row in matches if row["match"] == matches[0]["match"]]
    is_beginning = best[0]["match"] == 2 and session is not None
    if is_beginning and len(best) > 1:
        ids = ", ".join(str(row["session_id"]) for row in best[:SESSIONS_NAMED_MAX])
        raise RankmemError(
            Code.INVALID, f"session {session!r} fits {len(best)}: {ids}", "give more of the id"
        )
    return best[0]
