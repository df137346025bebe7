"""Writes one export from a database or a running aggregator: whole, or not at all.

Stage: export, in the reader's process and thread. In: an open ``Queries``, a kind, a selection and a path;
out: a file or a folder at that path. It appears there only when it is whole; what was there is replaced only
if the user asked for it, and a folder only if an export made it. Holds no data itself.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rankmem_aggregator.exports.contract import ExportResult, Selection, silent
from rankmem_aggregator.exports.kinds import ExportKind, SelectablePart, kind_of
from rankmem_aggregator.exports.names import is_database
from rankmem_aggregator.query.asking import one_answer
from rankmem_aggregator.query.missing import lines
from rankmem_aggregator.query.queries import Queries
from rankmem_protos.errors import Code, RankmemError

MANIFEST: Final = "_rankmem_export.json"
"""In each exported folder: its contents. Engines ignore names that begin with an underscore."""

FILE_ENDS: Final = (".gz", ".json", ".pickle", ".pkl", ".html", ".sqlite", ".sqlite3", ".db", ".zst", ".zip")
"""An OUT named so means a file: one that the kind does not write is refused, not made a folder."""


def export(
    queries: Queries,
    kind_name: str,
    out_path: Path,
    *,
    session: str | None = None,
    ranks: Sequence[int] | None = None,
    from_ns: int | None = None,
    until_ns: int | None = None,
    marks: str = "",
    force: bool = False,
    progress: Callable[[str], None] = silent,
) -> ExportResult:
    """Writes a file or a folder.

    Args:
        queries: the source.
        kind_name: one of :data:`~rankmem_aggregator.exports.kinds.KINDS`.
        out_path: its end may show whether it is one file or a folder.
        session: see :meth:`Queries.session_id`.
        ranks: global ranks; None for all, or for the highest where the file holds one.
        from_ns: start of the range, on the common clock.
        until_ns: its end.
        marks: as in :class:`Selection`.
        force: replace an existing file or folder.
        progress: called with what is being written.

    Raises:
        RankmemError: INVALID for an unknown kind, a part that the kind cannot select, or an OUT named like a
            file of another format; CONFLICT where the name is taken; NOT_FOUND for a session, rank or range
            without data; EXHAUSTED where the disk is full.
    """
    kind = kind_of(kind_name)
    asked: dict[SelectablePart, object] = {
        "session": session,
        "rank": ranks,
        "range": (from_ns, until_ns) != (None, None),
    }
    for part, value in asked.items():
        if value and part not in kind.parts:
            raise RankmemError(
                Code.INVALID, f"export {kind.name} takes no {part}", "leave it out: everything is written"
            )
    if from_ns is not None and until_ns is not None and from_ns > until_ns:
        raise RankmemError(Code.INVALID, "the range ends before it begins", "swap its ends")
    _check_out(kind, out_path, force)
    if is_database(out_path) and (kind.name != "duckdb" or _is_same(out_path, queries.target)):
        raise RankmemError(Code.CONFLICT, f"{out_path} is a database", "give another name")
    with one_answer(queries):
        session_id = queries.session_id(session) if "session" in kind.parts else ""
        selection = Selection(
            queries=queries,
            session_id=session_id,
            ranks=tuple(sorted(set(ranks))) if ranks else None,
            from_ns=from_ns,
            until_ns=until_ns,
            progress=progress,
            lacks=tuple(lines(queries.incompleteness(session_id).to_pylist())) if session_id else (),
            marks=marks,
        )
        _check_ranks(selection)
        return _write(kind, selection, out_path)


def _check_out(kind: ExportKind, out_path: Path, force: bool) -> None:
    if not out_path.parent.is_dir():
        raise RankmemError(
            Code.NOT_FOUND, f"there is no folder {out_path.parent}", "create it, or name another"
        )
    wanted = out_path.name.lower()
    if kind.ends and kind.is_folder(out_path) and wanted.endswith(FILE_ENDS) and not out_path.is_dir():
        raise RankmemError(
            Code.INVALID,
            f"export {kind.name} does not write files like {out_path.name}",
            f"name it X{', X'.join(kind.ends)}, or like a folder for one file per rank",
        )
    if not os.path.lexists(out_path) or (out_path.is_dir() and not any(out_path.iterdir())):
        return
    if not force:
        raise RankmemError(Code.CONFLICT, f"{out_path} already exists", "give another name, or --force")
    if kind.is_folder(out_path) is not out_path.is_dir() or out_path.is_symlink():
        what = "a folder" if kind.is_folder(out_path) else "a file"
        raise RankmemError(
            Code.CONFLICT, f"{out_path} exists, and is not {what} as this export is", "give another name"
        )
    if out_path.is_dir() and not (out_path / MANIFEST).is_file():
        raise RankmemError(
            Code.CONFLICT,
            f"{out_path} was not written by an export",
            "give another name, or remove it yourself",
        )


def _is_same(out_path: Path, target: str) -> bool:
    """Whether the file is the one being read; an address never is."""
    return Path(target).is_file() and out_path.samefile(target)


def _check_ranks(selection: Selection) -> None:
    if selection.ranks:
        known = set(selection.queries.ranks(selection.session_id)["rank"].to_pylist())
        if missing := sorted(set(selection.ranks) - known):
            raise RankmemError(
                Code.NOT_FOUND,
                f"no rank {', '.join(map(str, missing))} in session {selection.session_id}",
                "see rankmem ranks",
            )


def _write(kind: ExportKind, selection: Selection, out_path: Path) -> ExportResult:
    is_folder = kind.is_folder(out_path)
    # Some writers tell the form from the end of the name, so the unfinished name has the same end.
    unfinished = out_path.with_name(f".rankmem-{os.getpid()}-{out_path.name}")
    try:
        if is_folder:
            unfinished.mkdir()
        result = kind.writer()(selection, unfinished)
        result.remarks += selection.missing
        if is_folder:
            (unfinished / MANIFEST).write_text(_manifest(kind, selection, result), encoding="utf-8")
        _put_in_place(unfinished, out_path)
    except (OSError, sqlite3.Error) as exc:  # some kinds are SQLite files
        raise RankmemError(
            Code.EXHAUSTED,
            f"cannot write {out_path}: {getattr(exc, 'strerror', None) or exc}",
            "give another path, or make room",
        ) from exc
    except RankmemError as exc:
        if str(unfinished) not in exc.message:
            raise
        message = exc.message.replace(str(unfinished), str(out_path))
        raise RankmemError(exc.code, message, exc.hint) from exc
    finally:
        _remove(unfinished)
    return result


def _manifest(kind: ExportKind, selection: Selection, result: ExportResult) -> str:
    from importlib.metadata import version

    facts = {
        "export": kind.name,
        "rankmem": version("rankmem"),
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "session_id": selection.session_id,
        "ranks": selection.ranks,
        "from_ns": selection.from_ns,
        "until_ns": selection.until_ns,
        "counts": result.counts,
        "missing": selection.missing,
        "remarks": result.remarks,
    }
    return json.dumps(facts, indent=1) + "\n"


def _put_in_place(unfinished: Path, out_path: Path) -> None:
    """Renames; an older folder is moved aside first, as a rename replaces no folder with contents."""
    if not out_path.is_dir() or not unfinished.is_dir():
        unfinished.replace(out_path)
        return
    aside = unfinished.with_name(unfinished.name + ".old")
    out_path.rename(aside)
    try:
        unfinished.rename(out_path)
    except OSError:
        aside.rename(out_path)
        raise
    _remove(aside)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
