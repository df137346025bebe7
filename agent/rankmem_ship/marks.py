"""The mark of a spool that was set aside: why, and what each database has of it for real.

Stage: shipper process (writes it), ``rankmem ship`` and ``rankmem status`` (read it). In and out:
``set_aside.json`` in the spool's folder, whole or absent: ``format`` "rankmem-set-aside", the error's
``code``, ``message`` and ``hint``, ``at_ns`` on the host's clock, and ``databases``, by their ids. Written
and synced before a database is told that the rest is missing, since afterwards its last position says that
nothing is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rankmem_agent.spool.whole_file import write_whole
from rankmem_protos.errors import Code, RankmemError

FOLDER_NAME: Final = "set-aside"
MARK_NAME: Final = "set_aside.json"
_FORMAT: Final = "rankmem-set-aside"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What set_aside.json says."""

    code: Code
    message: str
    hint: str = ""
    at_ns: int = 0
    databases: dict[str, int] = field(default_factory=dict)
    """By the database's id: the last position it has stored; it was told that the rest is missing."""
    is_known: bool = True
    """Whether these are all; not of a damaged one."""

    def stored(self, database_id: str, last_sequence: int) -> int:
        """The last position that a database has stored for real.

        Args:
            last_sequence: the one up to which it knows of the spool; that may be what it was told is missing.
        """
        return self.databases.get(database_id, last_sequence if self.is_known else -1)

    def error(self) -> RankmemError:
        """Why, as an error."""
        return RankmemError(self.code, self.message, self.hint)


def read_mark(folder: Path) -> Mark | None:
    """What the spool's mark says; None where it has none. A damaged one is one that says nothing."""
    try:
        said = json.loads((folder / MARK_NAME).read_text("utf-8"))
        return Mark(
            code=Code(said["code"]),
            message=str(said["message"]),
            hint=str(said["hint"]),
            at_ns=int(said["at_ns"]),
            databases={str(name): int(last) for name, last in said["databases"].items()},
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        message = f"it was set aside; its {MARK_NAME} cannot be read"
        return Mark(code=Code.INVALID, message=message, is_known=False)


def write_mark(folder: Path, mark: Mark) -> None:
    """Puts the mark into the spool's folder, durably. Raises OSError where it cannot be."""
    said: dict[str, Any] = {"format": _FORMAT, "code": mark.code.value, "message": mark.message}
    said |= {"hint": mark.hint, "at_ns": mark.at_ns, "databases": mark.databases}
    write_whole(folder / MARK_NAME, json.dumps(said).encode(), durably=True)


def check_not_reported(mark: Mark | None, database_id: str, last_sequence: int) -> None:
    """Raises CONFLICT where this database was told that what the spool holds is missing."""
    if mark is not None and last_sequence > mark.stored(database_id, last_sequence):
        raise RankmemError(
            Code.CONFLICT,
            "this database was told that the rest of the spool is missing, and takes it no more",
            "ship it into another one: rankmem ship --db FILE DIR",
        )
