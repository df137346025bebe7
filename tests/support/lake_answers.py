"""Whether a lake answers through an engine as the database file does; and tasks that do harm."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from lake_sessions import STEADY, rows_of, view_questions
from rankmem_aggregator.lake.kernel import Task
from rankmem_aggregator.lake.scattered import ScatteredQueries, parts_of
from rankmem_aggregator.lake.seeded import SUMMANDS
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.sql import query_names, query_text


def check_views(
    file: Queries, scattered: ScatteredQueries, session: str, at_ns: int, groups_most: int | None
) -> None:
    """Asks every view and table macro that an engine can answer."""
    asked = {"hosts": 0, "time": 0, "sums": 0, "none": 0}
    for name, scatter, text, parameters in view_questions(file, session, at_ns, groups_most):
        asked[scatter] += 1
        is_forwarded = name.partition(" ")[0] in query_names() or name.startswith("mindstudio")
        if scatter == "none" or (groups_most and is_forwarded):  # the other tests ask these
            continue
        if scatter == "hosts":
            found = scattered.by_hosts(text, parameters, session)
        elif scatter == "sums":
            statement = SUMMANDS["modules"]["held_at_points"].replace("$rank", "NULL")
            found = scattered.by_sums(text, parameters, session, {"held_at_points": statement})
        else:
            by = name.partition(" ")[2] if name.startswith(("group_peak", "peak_by_ranks")) else "job"
            found = scattered.by_time(text, parameters, session, by)
        assert found is not None, name
        assert rows_of(found) == rows_of(file.sql(text, parameters)), name
    assert min(asked["hosts"], asked["time"], asked["none"]) >= 5
    assert asked["sums"] == 1


def whole_of(scattered: ScatteredQueries, kind: type[Task] = Task) -> list[Task]:
    """The peaks of a session by two parts."""
    parts = parts_of([{"rank": rank, "host_uid": f"host-{rank}"} for rank in range(4)], STEADY, 2)
    given_ = {"session": STEADY, "attempt": None, "rank": None}
    return [
        kind(
            address=scattered.target,
            version=scattered.version,
            part=part,
            sql=query_text("peak"),
            parameters=given_,
        )
        for part in parts
    ]


class DeadlyTask(Task):
    """A task that kills its worker."""

    def run(self) -> pa.Table:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


@dataclass(frozen=True, slots=True, kw_only=True)
class OnceDeadlyTask(Task):
    """A task that kills its worker, or the process above, when it is run for the first time."""

    marks: str
    """A folder; every run leaves a file there."""
    is_above: bool = False

    def run(self) -> pa.Table:
        place = Path(self.marks, f"{os.getpid()}")
        is_first = not list(place.parent.iterdir())
        place.touch()
        if is_first:
            os.kill(os.getppid() if self.is_above else os.getpid(), signal.SIGKILL)
            signal.pause()  # until what is above is missed
        return Task.run(self)


class HeadlessTask(Task):
    """A task that kills the head of its Ray cluster: what has its state, and what serves clients."""

    def run(self) -> pa.Table:
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                command = process.joinpath("cmdline").read_bytes()
                if b"gcs_server" in command or b"ray.util.client.server" in command:
                    os.kill(int(process.name), signal.SIGKILL)
        return Task.run(self)
