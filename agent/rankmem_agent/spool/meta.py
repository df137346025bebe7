"""``meta.json``, read: whose log a spool is, and how its clock began.

Stage: spool, reading side, in the shipper process. In: the file that the trainer wrote whole or not at all.
Out: :class:`SpoolMeta`. What cannot be understood is refused by its name, never guessed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankmem_agent.privacy import Privacy
from rankmem_agent.spool.layout import FORMAT_VERSION, META_FORMAT, META_NAME
from rankmem_protos.credentials import Credentials
from rankmem_protos.errors import Code, RankmemError


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolMeta:
    """The content of meta.json. Keys of session, rank and host are columns of their tables."""

    spool_id: str
    session_id: str
    attempt: int
    rank: int
    pid: int
    process_start_ticks: int
    start: int
    """How many spools this very process had before: it replaced itself by exec."""
    aggregator: str
    project_root: str
    monotonic_ns: int
    realtime_ns: int
    session: dict[str, Any]
    rank_row: dict[str, Any]
    host: dict[str, Any]
    start_key: str = ""
    """Names the start of the workers that the rank belongs to; empty: written by an older version."""
    launch: str = ""
    """Names what launched the rank."""
    credentials: Credentials = field(default_factory=Credentials)
    """Files for the aggregator."""
    privacy: Privacy = field(default_factory=Privacy)
    """How paths may leave this host."""
    secret: bytes = b""
    """Opens the spool at an aggregator; empty: an older version made it."""
    infers: bool = True
    """Whether what a block means follows from its call. Not in a foreign recording: there it is as in
    the source, or unknown."""


def read_meta(folder: Path) -> SpoolMeta:
    """The facts of a spool.

    Raises:
        RankmemError: NOT_FOUND without a meta.json, INVALID if it cannot be understood, UNSUPPORTED if
            a newer rankmem wrote it.
    """
    path = folder / META_NAME
    try:
        meta = json.loads(path.read_text("utf-8"))
        if meta["format"] != META_FORMAT:
            raise ValueError(f"format is {meta['format']!r}")
        if meta["version"] > FORMAT_VERSION:
            raise RankmemError(
                Code.UNSUPPORTED,
                f"{path} has format version {meta['version']}; this rankmem reads up to {FORMAT_VERSION}",
                "deliver it with the version of rankmem that recorded it",
            )
        return _spool_meta(meta)
    except FileNotFoundError as exc:
        raise RankmemError(Code.NOT_FOUND, f"{path} does not exist", "name the folder of a spool") from exc
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise RankmemError(Code.INVALID, f"{path} is not the description of a spool: {exc}") from exc


def _spool_meta(meta: dict[str, Any]) -> SpoolMeta:
    session_id, attempt, rank, pid, ticks, *start = str(meta["spool_id"]).split("-")
    return SpoolMeta(
        spool_id=meta["spool_id"],
        session_id=session_id,
        attempt=int(attempt),
        rank=int(rank),
        pid=int(pid),
        process_start_ticks=int(ticks),
        start=int(start[0]) if start else 0,
        aggregator=meta.get("aggregator") or "",
        start_key=str((meta.get("start") or {}).get("key") or ""),
        launch=str((meta.get("start") or {}).get("launch") or ""),
        credentials=Credentials.from_facts(meta.get("credentials") or {}),
        privacy=Privacy.from_facts(meta.get("privacy") or {}),
        project_root=meta.get("project_root") or "",
        monotonic_ns=int(meta["clock"]["monotonic_ns"]),
        realtime_ns=int(meta["clock"]["realtime_ns"]),
        session=dict(meta["session"]),
        rank_row=dict(meta["rank"]),
        host=dict(meta["host"]),
        secret=bytes.fromhex(meta.get("secret") or ""),
    )
