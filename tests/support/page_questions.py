"""Every route of the page with parameters that any database answers: by introspection, so that a new route is
covered without being named.

Stage: tests. In: a served page over a session; out: (path, parameters) for each route.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Final

from page_server import PageClient
from rankmem_aggregator.page.answers import ROUTES
from rankmem_aggregator.page.parameters import declared
from rankmem_aggregator.page.routes import DatabaseRoute, SessionRoute
from rankmem_protos.errors import RankmemError

BY_HAND: Final[dict[str, dict[str, Any]]] = {
    "/jump": {"to": "peak"},
    "/step_heat": {"figure": "peak"},
}
"""Parameters that cannot be guessed from their names, by path."""
_NOTHING: Final = {
    "rank": 0, "attempt": 0, "device": "cuda:0", "device_type": "cuda", "peak_seq": 0, "peak_ns": 0,
}  # fmt: skip
"""Asked about where no device is known: a recording of kernels alone."""


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A route, where it is asked, and with what."""

    route: SessionRoute | DatabaseRoute
    path: str
    parameters: dict[str, Any]


def questions(client: PageClient, session: str) -> Iterator[Question]:
    """A question for each route that is asked by GET."""
    job = client.ask(f"s/{session}/job")
    facts = client.facts(f"s/{session}/job")
    rows = [row for row in job.to_pylist() if row["device"] is not None]
    highest = max(rows, key=lambda row: row["peak_bytes"], default=_NOTHING)
    known = {
        "from": facts["first_ns"],
        "to": facts["last_ns"],
        "rank": highest["rank"],
        "ranks": highest["rank"],
        "attempt": highest["attempt"],
        "device": highest["device"],
        "device_type": highest["device_type"],
        "seq": highest["peak_seq"],
        "at": highest["peak_seq"],
        "around": highest["peak_seq"],
        "from_seq": max(0, highest["peak_seq"] - 100),
        "to_seq": highest["peak_seq"] + 100,
        "time": highest["peak_ns"],
        "at_ns": highest["peak_ns"],
        "block": highest["peak_seq"],
        "a": f"/{highest['rank']}/peak",
        "b": "/all/peak",
        "graph": "g1",
        "stack_id": 1,
        "base": session,
    }
    failures = client.ask(f"s/{session}/oom").to_pylist()
    for route in ROUTES:
        of_failure = route.path.startswith("/oom_")
        if of_failure and not failures:
            continue
        if isinstance(route, DatabaseRoute) and route.method == "POST":
            continue
        given = {
            each.name: known[each.name]
            for each in declared(route.parameters)
            if each.name in known and (each.required or each.name in ("rank", "device_type"))
        }
        path = route.path.strip("/")
        if isinstance(route, SessionRoute):
            path = f"s/{session}/{path}"
        if of_failure:
            given |= {name: failures[0][name] for name in ("rank", "attempt", "device", "seq")}
        yield Question(route, path, {**given, **BY_HAND.get(route.path, {})})


def answered(client: PageClient, question: Question) -> Any:
    """The answer, with what was asked in the message of a failure."""
    given = {("from_" if name == "from" else name): value for name, value in question.parameters.items()}
    try:
        return client.ask(question.path, **given)
    except RankmemError as exc:
        raise AssertionError(f"{question.path} {question.parameters}: {exc.message} ({exc.hint})") from exc
