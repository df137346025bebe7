"""The kinds of file that ``rankmem export`` writes, by name.

Stage: export. In: the name of a kind; out: what it is, and its module, which is imported where it is used.
A kind's module has a function ``write_KIND(chosen, out)``; see :class:`Writer`. Imports nothing heavy: the
command line's help is made from here.
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
"""What of a database a kind can leave out."""


class Writer(Protocol):
    """How a kind writes."""

    def __call__(self, selection: Selection, out: Path) -> ExportResult:
        """Writes what was chosen.

        Args:
            chosen: the session, and which part of it.
            out: a file to make, or an empty folder that is there, as :meth:`Kind.is_folder` says of the name
                that the user gave; under a name of its own until it is whole. Ends as that name does.

        Returns:
            What was written and what could not be.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportKind:
    """A kind of file."""

    name: str
    doc: str
    """A line for the help: what is written, and who opens it."""
    ends: tuple[str, ...] = ()
    """How the name of a single file ends; any other name is a folder's. Empty: see ``always``."""
    always: Literal["file", "folder"] | None = None
    """Where the name does not say."""
    parts: frozenset[SelectablePart] = frozenset({"session", "rank", "range"})
    module: str = ""
    """Within this package; empty: named after the kind."""

    def is_folder(self, out_path: Path) -> bool:
        """Whether a folder of this name is made, or a file."""
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
        ExportKind(
            name="html",
            doc="A report in one page, to mail: it opens offline.",
            always="file",
        ),
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
            name="chrome-trace",
            doc="All ranks as a Chrome trace: X.json or X.json.gz.",
            always="file",
        ),
        ExportKind(
            name="perfetto",
            doc="The same, for ui.perfetto.dev.",
            always="file",
            module="chrome_trace",
        ),
    )
}
"""By name, in the order of the help."""


def kind_of(name: str) -> ExportKind:
    """The kind of this name.

    Raises:
        RankmemError: INVALID for a name that is none.
    """
    if name not in KINDS:
        raise RankmemError(Code.INVALID, f"there is no export {name!r}", f"one of {', '.join(KINDS)}")
    return KINDS[name]
