"""The page in one file says what the named queries say, reaches for nothing, trusts no name, and is small."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from constructed import BASE_NS, RankLog, empty_database, store_logs
from export_logs import database, training
from kept_answers import answers_of, content_of, job_of
from rankmem_aggregator import connect
from rankmem_aggregator.exports.exporting import export
from rankmem_aggregator.page.kept_questions import RANKS_MAX
from rankmem_aggregator.page.one_file import key_of, one_file
from rankmem_aggregator.page.reading import facts_of
from rankmem_aggregator.query.next_commands import GivenOptions
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.query.types import Parameters
from rankmem_aggregator.sql import query_text
from rankmem_protos.errors import Code, RankmemError
from two_sessions import NEW, OLD, two_sessions

pytestmark = pytest.mark.slow

HOSTILE = "</script><img src=x onerror=alert(1)><!--{{body}}"
SECOND_US = 1_000_000


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queries]:
    jobs = [training(rank, host_uid=f"host-{rank // 2}") for rank in range(4)]
    jobs[3].later(3 * SECOND_US)
    jobs[3].alloc("hostile", 70_000_000, 1 << 40, operator=HOSTILE, module=HOSTILE, category="activation")
    with connect(database(tmp_path_factory.mktemp("report") / "r.duckdb", jobs)) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(queries: Queries, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(queries, tmp_path_factory.mktemp("out") / "r.html")


def written(queries: Queries, out: Path, **asked: Any) -> Path:
    export(queries, "html", out, force=True, **asked)
    return out


def test_each_statement_is_asked_once_but_what_is_missing(
    queries: Queries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[tuple[str, str]] = Counter()
    ask = queries.sql

    def counted(text: str, parameters: Parameters | None = None) -> pa.Table:
        if text != query_text("incompleteness"):
            asked[text, repr(sorted((parameters or {}).items()))] += 1
        return ask(text, parameters)

    monkeypatch.setattr(queries, "sql", counted)
    one_file(queries, queries.session_id())
    assert [of for of, times in asked.items() if times > 1] == []
    assert len(asked) > 50


def test_the_file_reaches_for_nothing(page: Path) -> None:
    text = page.read_text("utf-8")
    (policy,) = re.findall(r'http-equiv="content-security-policy" content="([^"]*)"', text)
    assert policy.startswith("default-src 'none'; ")
    assert not re.search(r"https?:|'self'|unsafe|connect-src", policy)
    markup = re.sub(r"<(script|style)[^>]*>.*?</\1>", "", text, flags=re.DOTALL)
    assert not re.findall(r"\b(?:src|href)=\"(?!#)", markup)


def test_scripts_and_styles_are_those_of_the_policy(page: Path) -> None:
    text = page.read_text("utf-8")
    (policy,) = re.findall(r'http-equiv="content-security-policy" content="([^"]*)"', text)
    kinds = r"<(?:script|style)(?: type=\"(?:importmap|module)\")?>(.*?)</(?:script|style)>"
    inline = re.findall(kinds, text, re.DOTALL)
    assert len(inline) == 4
    for one in inline:
        digest = base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert policy.count("'sha256-") == 4


def test_every_module_is_in_it_and_finds_the_others(page: Path) -> None:
    text = page.read_text("utf-8")
    (found,) = re.findall(r'<script type="importmap">(.*?)</script>', text, re.DOTALL)
    modules = json.loads(found)["imports"]
    assert "rankmem/main.js" in modules
    for name, address in modules.items():
        source = base64.b64decode(address.partition("base64,")[2]).decode()
        for imported in re.findall(r"""^import\b[^;]*?["']([^"']+)["'];$""", source, re.MULTILINE):
            assert imported in modules, f"{name} imports {imported}"


def test_names_from_outside_reach_it_as_data_alone(page: Path) -> None:
    text = page.read_text("utf-8")
    assert "<img" not in text
    assert "onerror" not in text
    assert len(re.findall("<script", text)) == len(re.findall("</script", text))


def test_the_ranks_peaks_are_the_queries_own(queries: Queries, page: Path) -> None:
    told = {(row["rank"], row["device"]): (row["peak_bytes"], row["peak_seq"]) for row in job_of(page)}
    assert told == {
        (row["rank"], row["device"]): (row["peak_requested_bytes"], row["peak_seq"])
        for row in queries.peak().to_pylist()
    }


def test_the_curve_of_the_highest_rank_reaches_its_peak(queries: Queries, page: Path) -> None:
    (curve,) = answers_of(page, "curve")
    highest = max(row["peak_requested_bytes"] for row in queries.peak().to_pylist())
    assert highest in {value for row in curve.to_pylist() for value in row.values()}
    assert content_of(page)["notKept"] == []


def test_chosen_ranks_and_a_range_are_kept_and_named(queries: Queries, tmp_path: Path) -> None:
    from_ns, until_ns = BASE_NS + 2_000, BASE_NS + 6_000
    path = written(queries, tmp_path / "r.html", ranks=[0, 2], from_ns=from_ns, until_ns=until_ns)
    content = content_of(path)
    assert len(answers_of(path, "curve")) == 2
    origin_ns = int(queries.sessions().to_pylist()[0]["started_ns"])
    assert content["state"] == {
        "s": queries.session_id(),
        "from": str(from_ns - origin_ns),
        "to": str(until_ns - origin_ns),
        "rank": "0",
    }
    assert "rank 0, 2 over a part of the session" in content["holds"]
    assert {row["rank"] for row in job_of(path)} == {0, 1, 2, 3}, "the peaks are of all ranks"


def test_too_many_ranks_are_refused(queries: Queries, tmp_path: Path) -> None:
    jobs = [training(rank) for rank in range(RANKS_MAX + 1)]
    with connect(database(tmp_path / "many.duckdb", jobs)) as many, pytest.raises(RankmemError) as refused:
        written(many, tmp_path / "r.html", ranks=list(range(RANKS_MAX + 1)))
    assert refused.value.code is Code.INVALID
    assert str(RANKS_MAX) in refused.value.message


def test_who_gets_the_file_learns_of_no_other_session(tmp_path: Path) -> None:
    with connect(two_sessions(tmp_path / "two.duckdb")) as opened:
        path = written(opened, tmp_path / "r.html", session=NEW)
    for rows in answers_of(path, "sessions"):
        assert rows["session_id"].to_pylist() == [NEW]
    assert OLD not in path.read_text("utf-8")


def test_its_commands_leave_the_database_to_who_opens_it(tmp_path: Path) -> None:
    with connect(two_sessions(tmp_path / "two.duckdb")) as opened:
        opened.given_options = GivenOptions(source=(("--db", "/home/me/two.duckdb"),))
        path = written(opened, tmp_path / "r.html", session=NEW)
    (job,) = answers_of(path, "job")
    assert facts_of(job)["options"] == f"--db FILE --session {NEW}"
    routes = {key.partition("?")[0] for key in content_of(path)["answers"]}
    facts = [str(answer.schema.metadata) for route in routes for answer in answers_of(path, route)]
    assert not any("/home/me" in each for each in facts)


@pytest.mark.parametrize(
    ("parameters", "key"),
    [
        ({}, "curve?by=none"),
        ({"rank": 3, "px": 900}, "curve?by=none&rank=3"),
        ({"by": "category", "rank": None, "device": ""}, "curve?by=category"),
        ({"to": 9, "from": -1}, "curve?by=none&from=-1&to=9"),
    ],
)
def test_a_question_is_found_by_what_matters_of_it(parameters: dict[str, Any], key: str) -> None:
    assert key_of("/curve", parameters, {"by": "none", "px": "400"}) == key


def test_a_job_of_a_thousand_ranks_stays_small(tmp_path: Path) -> None:
    jobs = []
    for rank in range(1024):
        log = RankLog(rank=rank, host_uid=f"host-{rank // 8}", ended=9_000_000_000)
        for i in range(60):
            log.alloc(f"b{i}", (rank * 7919 + i * 104729) % 100_000, at=i * 140_000_000, device="cuda:0")
        jobs.append(log)
    path = tmp_path / "thousand.duckdb"
    with empty_database(str(path)) as connection:
        store_logs(connection, jobs)
    with connect(path) as queries:
        out = written(queries, tmp_path / "r.html")
    assert len(job_of(out)) == 1024
    assert out.stat().st_size <= 5_000_000
