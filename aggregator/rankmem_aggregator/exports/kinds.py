"""The kinds of file that ``rankmem export`` writes, by name.

Stage: export. In: the name of a kind; out: its description and its module, which is imported when it is used.
That has a function ``write_KIND(selection, out)``; see :class:`Writer`. Imports nothing heavy: the command
line's help is made from this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol, cast

from rankmem_protos.errors import Code, RankmemError

if TYPE_CHECKING:
    from rankmem_aggregator.exports.contract import ExportResult, Selection

SelectablePart = Literal["session", "rank", "range"]
"""By what an export can be limited."""


class Writer(Protocol):
    """Writes files of one kind."""

    def __call__(self, selection: Selection, out: Path) -> ExportResult:
        """Writes the selection.

        Args:
            selection: the session, and the part of it to write.
            out: a file to make, or an empty folder that exists, by :meth:`ExportKind.is_folder` of the path
                that the user gave. A temporary name with the same end, until the export is whole.

        Returns:
            The number of things written, and remarks.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportKind:
    """A kind of file that can be exported."""

    name: str
    doc: str
    """A line for the help: what is written, and for which tool."""
    ends: tuple[str, ...] = ()
    """Ends of a single file's name; any other name is a folder's. Empty: see ``always``."""
    always: Literal["file", "folder"] | None = None
    """For kinds whose name does not decide."""
    parts: frozenset[SelectablePart] = frozenset({"session", "rank", "range"})
    module: str = ""
    """Within this package; empty: named after the kind."""

    def is_folder(self, out_path: Path) -> bool:
        """Whether a folder is made at this path, not a file."""
        if self.always is not None:
            return self.always == "folder"
        return not out_path.name.lower().endswith(self.ends)

    def writer(self) -> Writer:
        """The function ``write_KIND`` of its module."""
        name = self.name.replace("-", "_")
        module = import_module(f"rankmem_aggregator.exports.{self.module or name}")
        return cast("Writer", getattr(module, f"write_{name}"))


KINDS: Final[dict[str, ExportKind]] = {
    kind.name: kind
    for kind in (
        ExportKind(
            name="duckdb",
            doc="A consistent copy of the whole database, all sessions: a file.",
            always="file",
            parts=frozenset(),
            module="whole",
        ),
        ExportKind(name="html", doc="The web page in one file, to mail: it opens offline.", always="file"),
        ExportKind(
            name="parquet",
            doc="All tables as a data set by session, host and rank: a folder.",
            always="folder",
        ),
        ExportKind(
            name="arrow",
            doc="A file a table (Arrow IPC, also Feather): a folder.",
            always="folder",
            module="tables",
        ),
        ExportKind(name="csv", doc="A file a table: a folder.", always="folder", module="tables"),
        ExportKind(
            name="torch-snapshot",
            doc="PyTorch's memory snapshot: X.pickle of one rank, or a folder.",
            ends=(".pickle", ".pkl"),
        ),
        ExportKind(
            name="memory-timeline",
            doc="As torch.profiler's: X.raw.json.gz, X.json, X.html, or a folder.",
            ends=(".json", ".json.gz", ".html"),
        ),
        ExportKind(
            name="skyline",
            doc="Skyline's memory report: X.sqlite of one rank, or a folder.",
            ends=(".sqlite", ".sqlite3", ".db"),
        ),
        ExportKind(
            name="mindstudio",
            doc="A profiler folder a rank, for MindStudio Insight: a folder.",
            always="folder",
        ),
        ExportKind(
            name="chrome-trace", doc="All ranks as a Chrome trace: X.json or X.json.gz.", always="file"
        ),
        ExportKind(
            name="perfetto", doc="The same, for ui.perfetto.dev.", always="file", module="chrome_trace"
        ),
    )
}
"""By name, in the order of the help."""


def kind_of(name: str) -> ExportKind:
    """The kind of this name.

    Raises:
        RankmemError: INVALID for an unknown name.
    """
    if name not in KINDS:
        raise RankmemError(Code.INVALID, f"there is no export {name!r}", f"one of {', '.join(KINDS)}")
    return KINDS[name]
