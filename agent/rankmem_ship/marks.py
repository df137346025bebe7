"""The mark of a spool that was set aside: why, and what each database has really stored of it.

Stage: shipper process (writes it), ``rankmem ship`` and ``rankmem status`` (read it). In and out:
``set_aside.json`` in the spool's folder, whole or absent: ``format`` "rankmem-set-aside", the error's
``code``, ``message`` and ``hint``, ``at_ns`` on the host's clock, and ``databases``, by their ids. Written
and synced before the rest is reported to a database as missing, since afterwards the database's last position
says that nothing is.
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
    """The contents of set_aside.json."""

    code: Code
    message: str
    hint: str = ""
    at_ns: int = 0
    databases: dict[str, int] = field(default_factory=dict)
    """By the database's id: the last position it has stored; the rest was reported to it as missing."""
    is_known: bool = True
    """Whether ``databases`` is complete; it is not if the file is damaged."""

    def stored(self, database_id: str, last_sequence: int) -> int:
        """The last position that a database has really stored.

        Args:
            last_sequence: the last position that it reports; up to there it may be reported as missing only.
        """
        return self.databases.get(database_id, last_sequence if self.is_known else -1)

    def error(self) -> RankmemError:
        """Why, as an error."""
        return RankmemError(self.code, self.message, self.hint)


def read_mark(folder: Path) -> Mark | None:
    """The spool's mark; None if it has none. A damaged one comes back without its facts."""
    try:
        facts = json.loads((folder / MARK_NAME).read_text("utf-8"))
        return Mark(
            code=Code(facts["code"]),
            message=str(facts["message"]),
            hint=str(facts["hint"]),
            at_ns=int(facts["at_ns"]),
            databases={str(name): int(last) for name, last in facts["databases"].items()},
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        message = f"it was set aside; its {MARK_NAME} cannot be read"
        return Mark(code=Code.INVALID, message=message, is_known=False)


def write_mark(folder: Path, mark: Mark) -> None:
    """Write the mark into the spool's folder, durably. Raises OSError."""
    facts: dict[str, Any] = {"format": _FORMAT, "code": mark.code.value, "message": mark.message}
    facts |= {"hint": mark.hint, "at_ns": mark.at_ns, "databases": mark.databases}
    write_whole(folder / MARK_NAME, json.dumps(facts).encode(), durably=True)


def check_not_reported(mark: Mark | None, database_id: str, last_sequence: int) -> None:
    """Raise CONFLICT if the rest of this spool was reported to this database as missing."""
    if mark is not None and last_sequence > mark.stored(database_id, last_sequence):
        raise RankmemError(
            Code.CONFLICT,
            "the rest of the spool is recorded as missing in this database, which no longer accepts it",
            "ship it into another one: rankmem ship --db FILE DIR",
        )
