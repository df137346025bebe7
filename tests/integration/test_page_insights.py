"""The page's insights are those of the verbs, on the same session, and refuse what cannot be asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from constructed import empty_database
from insights_page import JOBS
from page_server import PageClient, served_page
from rankmem_aggregator import connect
from rankmem_aggregator.insights.answer import Answer
from rankmem_aggregator.page.insight import REPLAYED_MAX
from rankmem_aggregator.query.next_commands import GivenOptions
from rankmem_aggregator.query.queries import Queries
from rankmem_protos.errors import Code, RankmemError
from repetitions import long_but

GIB = 1 << 30
ASKED: dict[str, dict[str, Any]] = {
    "fit": {"batch": "64,128", "recorded": "8,16", "size_gib": 1, "as_device": "cuda"},
    "whatif": {"size_gib": 60 / 1024},
    "diff": {"base": "main"},
}
"""What the page is asked, by verb; nothing else of the others."""


def of_verb(queries: Queries, verb: str) -> Answer:
    """What the verb says, asked in its own words."""
    if verb == "fit":
        return queries.fit(batch=["64", "128"], recorded=[8, 16], in_bytes=GIB, as_device="cuda")
    if verb == "whatif":
        return queries.whatif(fit_bytes=60 << 20)
    if verb == "diff":
        return queries.diff("main", "pull-request")
    return queries.why_oom() if verb == "oom" else getattr(queries, verb)()  # type: ignore[no-any-return]


class Jobs:
    """A served page over the job of each verb."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._clients: dict[str, PageClient] = {}

    def path(self, verb: str) -> Path:
        path = self._folder / f"{JOBS[verb].__name__}.duckdb"
        if not path.exists():
            with empty_database(str(path)) as connection:
                JOBS[verb](connection)
        return path

    def client(self, verb: str) -> PageClient:
        path = self.path(verb)
        if path.name not in self._clients:
            self._clients[path.name] = self._stack.enter_context(served_page(path))
        return self._clients[path.name]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    with ExitStack() as stack:
        yield Jobs(tmp_path_factory.mktemp("insights"), stack)


@pytest.mark.parametrize(
    "verb",
    long_but(
        ["leaks", "oom", "fragmentation", "fit", "whatif", "diff", "diagnose"],
        "oom",
        "fit",
        "diff",
        "diagnose",
    ),
)
def test_the_page_says_what_the_verb_says(jobs: Jobs, verb: str) -> None:
    with connect(jobs.path(verb)) as queries:
        session = str(queries.session_id("pull-request" if verb == "diff" else None))
        given = dict(ASKED.get(verb, {}))
        if verb == "diff":
            given["base"] = str(queries.session_id("main"))
        expected = of_verb(queries, verb).asked_with(GivenOptions(session=session)).as_dict()
    asked = f"s/{session}/insight/{verb}"
    assert jobs.client(verb).ask(asked, **given).to_pylist() == expected["rows"]
    facts = jobs.client(verb).facts(asked, **given)
    told = facts["insight"]
    assert expected["verdict"] == "finding"
    assert told == json.loads(json.dumps({name: expected[name] for name in told}))
    assert {"sentence", "certainty", "error", "figures", "notes", "next_commands"} <= set(told)
    assert facts["exact"] == (expected["certainty"] == "exact")


def session_of(jobs: Jobs, verb: str) -> str:
    with connect(jobs.path(verb)) as queries:
        return str(queries.session_id())


@pytest.mark.parametrize(
    ("verb", "given", "code", "said"),
    [
        ("oom", {"failure": 9}, Code.NOT_FOUND, "no failure 9"),
        ("oom", {"failure": 0}, Code.INVALID, "failure"),
        ("fragmentation", {"rank": 7}, Code.NOT_FOUND, "no rank 7"),
        ("fit", {"batch": "many"}, Code.INVALID, "many"),
        ("fit", {"batch": "64,"}, Code.INVALID, "batch"),
        ("fit", {"batch": "64", "length": "64"}, Code.INVALID, "a batch and a length"),
        ("whatif", {"ranks": 1}, Code.INVALID, "ranks"),
        ("diff", {"base": "none"}, Code.NOT_FOUND, "no session"),
        ("diff", {}, Code.INVALID, "base"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_a_hint(
    jobs: Jobs, verb: str, given: dict[str, Any], code: Code, said: str
) -> None:
    with pytest.raises(RankmemError, match=said) as refused:
        jobs.client(verb).ask(f"s/{session_of(jobs, verb)}/insight/{verb}", **given)
    assert refused.value.code is code
    assert refused.value.hint


def test_what_cannot_be_told_is_an_answer_with_the_reason(jobs: Jobs) -> None:
    asked = f"s/{session_of(jobs, 'leaks')}/insight/fragmentation"
    told = jobs.client("leaks").facts(asked)["insight"]
    assert (told["verdict"], told["certainty"]) == ("cannot tell", None)
    assert "addresses" in told["sentence"] or "segments" in told["sentence"]
    assert jobs.client("leaks").ask(asked).num_rows == 0


def test_a_device_of_too_many_events_is_not_replayed(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    from rankmem_aggregator.page.answers import insights

    assert REPLAYED_MAX == insights.REPLAYED_MAX
    monkeypatch.setattr(insights, "REPLAYED_MAX", 5)
    told = jobs.client("oom").facts(f"s/{session_of(jobs, 'oom')}/insight/fragmentation")["insight"]
    assert told["verdict"] == "cannot tell"
    assert "more than 5 events" in told["sentence"]


def test_an_answer_is_found_once_for_all_panels_that_begin_with_it(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    leaks = Queries.leaks
    monkeypatch.setattr(
        Queries, "leaks", lambda own, *given, **more: asked.append("") or leaks(own, *given, **more)
    )
    path = jobs.path("leaks").with_name("again.duckdb")
    with empty_database(str(path)) as connection:
        JOBS["leaks"](connection)
    with served_page(path) as client:
        session = session_of(jobs, "leaks")
        for route in ("insight/leaks", "fit", "steps", "step_kept"):
            client.ask(f"s/{session}/{route}")
    assert len(asked) == 1
