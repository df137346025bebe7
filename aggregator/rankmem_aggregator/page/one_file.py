"""The page in one file: its own modules, and the answers that it asks when it is opened, kept beside them.

Stage: page and export, in the reader's process; needs no server. In: a session, ranks, a range. Out: the text
of one HTML file that opens from anywhere and asks nobody: modules are ``data:`` addresses of an import map,
the policy allows scripts and styles by their hashes, answers stand in a block of JSON, each packed. Names
from a recording reach it inside of that alone. ``static/kept.js`` is its other half: it finds an answer by
:func:`key_of`, and says so where the file holds none.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from importlib import resources
from importlib.metadata import version
from importlib.resources.abc import Traversable
from typing import Any, Final

import pyarrow as pa

from rankmem_aggregator.page.answers import ROUTES
from rankmem_aggregator.page.answers.sessions import session_alone
from rankmem_aggregator.page.kept_questions import Chosen, questions_of
from rankmem_aggregator.page.parameters import declared, read_parameters
from rankmem_aggregator.page.reading import PageSession, Reading, facts_of
from rankmem_aggregator.page.routes import DatabaseRoute, SessionRoute
from rankmem_aggregator.query.asking import each_once
from rankmem_aggregator.query.next_commands import GivenOptions
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.query.types import SessionId
from rankmem_aggregator.sql import page_text
from rankmem_protos.errors import Code, RankmemError

FILE_BYTES_MAX: Final = 64 << 20
"""Of a file: what a mail system or a browser's reader takes at most."""
NOT_IN_KEYS: Final = frozenset({"px", "bins", "rows", "width", "height"})
"""How finely something is drawn on a screen: any kept answer serves."""
NOT_THE_READERS: Final = GivenOptions(source=(("--db", "FILE"),))
"""Who opens the file has the database elsewhere, or not at all."""
FIRST_MODULE: Final = "main.js"
_SPECIFIER: Final = re.compile(r"""((?:from|import)\s+|import\()"(\.[^"]+)\"""")


def one_file(
    queries: Queries,
    session_id: str,
    *,
    ranks: Sequence[int] | None = None,
    from_ns: int | None = None,
    until_ns: int | None = None,
    missing: Sequence[str] = (),
    marks: str = "",
    progress: Callable[[str], None] = lambda text: None,
) -> str:
    """The text of the file.

    Args:
        ranks: whose curves and blocks are kept; None: of the rank that stood highest. The ranks' peaks and
            the heat map are always of all.
        from_ns: begin of the range that is shown, on the common clock; None: the session's.
        until_ns: its end.
        missing: what the session lacks, a line each.
        marks: named ranges and instants, as the page's link has them.
        progress: called with what is asked.

    Raises:
        RankmemError: what questions raise; EXHAUSTED for a file that is too large.
    """
    kept = _Kept(reading=_reading(queries, session_id), progress=progress)
    with each_once(queries):
        job = kept.add(_route("/job"), {})
        facts = facts_of(job)
        origin_ns = int(facts["origin_ns"])
        chosen = Chosen.of(
            job,
            ranks=ranks,
            first_ns=int(facts["first_ns"]),
            last_ns=int(facts["last_ns"]),
            from_ns=None if from_ns is None else from_ns - origin_ns,
            until_ns=None if until_ns is None else until_ns - origin_ns,
        )
        for path, parameters in questions_of(chosen, ROUTES, _first_oom(kept)):
            kept.add(_route(path), parameters)
        kept.add_sessions(queries, session_id)
    content = {
        "rankmem": version("rankmem"),
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "session": session_id,
        "state": chosen.state(session_id) | ({"marks": marks} if marks else {}),
        "from": chosen.first_ns,
        "to": chosen.last_ns,
        "holds": chosen.text(),
        "missing": [*missing, *([queries.stale] if queries.stale else [])],
        "notKept": kept.failed,
        "notInKeys": sorted(NOT_IN_KEYS),
        "defaults": _defaults(),
        "answers": kept.packed(),
    }
    text = _assembled(content)
    if len(text) > FILE_BYTES_MAX:
        raise RankmemError(
            Code.EXHAUSTED,
            f"the file would have {len(text):,} bytes, more than {FILE_BYTES_MAX:,}",
            "choose fewer ranks with --rank, or pass the database on: rankmem export duckdb COPY",
        )
    return text


def key_of(path: str, parameters: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """What an answer is found by: its route and the parameters that matter, with defaults filled in."""
    full = {**defaults, **{name: value for name, value in parameters.items() if value is not None}}
    pairs = [
        f"{name}={_text_of(value)}"
        for name, value in sorted(full.items())
        if name not in NOT_IN_KEYS and value is not None and value != ""
    ]
    return f"{path.strip('/')}?{'&'.join(pairs)}"


@dataclass(slots=True, kw_only=True)
class _Kept:
    """The answers so far."""

    reading: Callable[[], Reading]
    progress: Callable[[str], None]
    answers: dict[str, bytes] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def add(self, route: SessionRoute | DatabaseRoute, parameters: Mapping[str, Any]) -> pa.Table:
        """Asks a question and keeps its answer; one that cannot be answered is a line of the file."""
        assert isinstance(route, SessionRoute)
        self.progress(f"asking {route.path.strip('/')}")
        given = [(name, _text_of(value)) for name, value in parameters.items() if value is not None]
        try:
            answer = route.answer(self.reading(), read_parameters(route.parameters, given))
        except RankmemError as exc:
            if route.path == "/job":
                raise
            self.failed.append(f"{route.path.strip('/')}: {exc.message}")
            return pa.table({})
        self.answers[key_of(route.path, parameters, _defaults_of(route))] = _stream(answer)
        return answer

    def add_sessions(self, queries: Queries, session_id: str) -> None:
        """The list of sessions, of this one alone: who gets the file learns of no other."""
        route = _route("/sessions")
        rows = session_alone(queries, session_id)
        for parameters in ({}, {"limit": 1}):
            self.answers[key_of(route.path, parameters, _defaults_of(route))] = _stream(rows)

    def packed(self) -> dict[str, str]:
        """The answers as text."""
        return {
            key: base64.b64encode(gzip.compress(body, compresslevel=9, mtime=0)).decode()
            for key, body in self.answers.items()
        }


def _first_oom(kept: _Kept) -> Mapping[str, Any] | None:
    """The failed allocation that the page shows first."""
    if not any(route.path == "/oom" for route in ROUTES):
        return None
    rows: list[Mapping[str, Any]] = kept.add(_route("/oom"), {}).slice(0, 1).to_pylist()
    return rows[0] if rows else None


def _reading(queries: Queries, session_id: str) -> Callable[[], Reading]:
    rows = queries.sql(page_text("session_state"), {"session": session_id}).to_pylist()
    if not rows:
        raise RankmemError(
            Code.NOT_FOUND, f"no session {session_id!r} in {queries.target}", "see rankmem sessions"
        )
    session = PageSession(**{**rows[0], "session_id": SessionId(rows[0]["session_id"])})
    return lambda: Reading(queries=queries, session=session, opened_as=NOT_THE_READERS)


def _route(path: str) -> SessionRoute | DatabaseRoute:
    return next(route for route in ROUTES if route.path == path)


def _stream(answer: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, answer.schema) as writer:
        writer.write_table(answer.combine_chunks())
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _text_of(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _defaults_of(route: SessionRoute | DatabaseRoute) -> dict[str, Any]:
    names = {each.field: each.name for each in declared(route.parameters) if not each.required}
    return {
        names[each.name]: _text_of(each.default)
        for each in fields(route.parameters)
        if each.name in names and each.default is not None
    }


def _defaults() -> dict[str, dict[str, str]]:
    return {route.path.strip("/"): _defaults_of(route) for route in ROUTES}


def _assembled(content: Mapping[str, Any]) -> str:
    static = resources.files("rankmem_aggregator.page") / "static"
    modules = {f"rankmem/{name}": _address(name, text) for name, text in _modules(static)}
    import_map = json.dumps({"imports": modules}, separators=(",", ":"))
    begin = f'import "rankmem/{FIRST_MODULE}";'
    library = _script((static / "vendor" / "flechette.min.js").read_text("utf-8"))
    style = (static / "page.css").read_text("utf-8")
    scripts = " ".join(map(_hash, (import_map, begin, library)))
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {scripts} data:",  # data: are the modules of the import map
            f"style-src {_hash(style)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )
    index = (static / "index.html").read_text("utf-8")
    body = index[index.index("<body>") : index.index("</body>")]
    return "".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="content-security-policy" content="{policy}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>rankmem</title>\n',
            f"<style>{style}</style>\n<script>{library}</script>\n",
            f'<script type="importmap">{import_map}</script>\n</head>\n{body}',
            f'<script type="application/json" id="answers">{_embedded(content)}</script>\n',
            f'<script type="module">{begin}</script>\n</body>\n</html>\n',
        )
    )


def _modules(folder: Traversable, within: str = "") -> Iterator[tuple[str, str]]:
    """The page's modules by their path, each with the names that it imports as the import map has them."""
    for entry in sorted(folder.iterdir(), key=lambda each: each.name):
        if entry.is_dir() and entry.name != "vendor":
            yield from _modules(entry, f"{within}{entry.name}/")
        elif entry.name.endswith(".js"):
            yield f"{within}{entry.name}", _renamed(entry.read_text("utf-8"), within)


def _renamed(text: str, within: str) -> str:
    def name(found: re.Match[str]) -> str:
        parts = within.split("/")[:-1]
        for part in found.group(2).split("/"):
            if part == "..":
                parts.pop()
            elif part != ".":
                parts.append(part)
        return f'{found.group(1)}"rankmem/{"/".join(parts)}"'

    return _SPECIFIER.sub(name, text)


def _address(name: str, text: str) -> str:
    return f"data:text/javascript;base64,{base64.b64encode(text.encode()).decode()}"


def _script(text: str) -> str:
    if re.search(r"</script|<!--", text, re.IGNORECASE):
        raise RankmemError(Code.INTERNAL, "a vendored script cannot stand in a page", "please report it")
    return text


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _embedded(content: Mapping[str, Any]) -> str:
    """JSON that cannot end its script element."""
    text = json.dumps(content, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
