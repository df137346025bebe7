"""The formats of recordings that are read, by name.

Stage: readers; the process of ``rankmem import``. In: the first bytes of a file, or its tables; out: its
format. A file is recognised by its content, whatever its name. A reader is imported when a recording of its
format is opened: the readers, with numpy and pyarrow, take longer to import than all else in the command.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, cast

from rankmem_imports.ascend import recognition as ascend
from rankmem_imports.kernels import recognition as kernels
from rankmem_imports.kineto import recognition as kineto
from rankmem_imports.memory_timeline import recognition as memory_timeline
from rankmem_imports.memscope import recognition as memscope
from rankmem_imports.probing import Probe
from rankmem_imports.tensorflow import recognition as tensorflow
from rankmem_imports.torch_snapshot import recognition as torch_snapshot

if TYPE_CHECKING:
    from rankmem_imports.recording import RankRecording


class Reader(Protocol):
    """A format's module."""

    def files_with(self, path: Path) -> Sequence[Path]:
        """The files that make one recording with ``path``, itself first; where a recording has several."""

    def open_ranks(self, files: Sequence[Path]) -> Sequence[RankRecording]:
        """The ranks in a recording.

        Raises:
            RankmemError: INVALID, UNSUPPORTED, or EXHAUSTED, with the file and what to do.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format of recordings."""

    name: str
    """Also the value of ``session.source``."""
    recognises: Callable[[Probe], bool]
    module: str
    """Within this package; see :class:`Reader`."""
    has_several_files: bool = False
    """In one recording."""

    def files(self, path: Path) -> Sequence[Path]:
        """The files that make one recording together with ``path``, itself included."""
        return self._reader().files_with(path) if self.has_several_files else (path,)

    def open(self, files: Sequence[Path]) -> Sequence[RankRecording]:
        """The ranks in a recording. Raises as :meth:`Reader.open_ranks`."""
        return self._reader().open_ranks(files)

    def _reader(self) -> Reader:
        return cast("Reader", import_module(f"rankmem_imports.{self.module}"))


FORMATS: Final[dict[str, Format]] = {
    one.name: one
    for one in (
        Format(
            name=torch_snapshot.NAME, recognises=torch_snapshot.recognises, module="torch_snapshot.reader"
        ),
        Format(
            name=memory_timeline.NAME, recognises=memory_timeline.recognises, module="memory_timeline.reader"
        ),
        Format(name=kernels.NVPROF, recognises=kernels.recognises_nvprof, module="kernels.nvprof"),
        Format(name=kernels.NSYS, recognises=kernels.recognises_nsys, module="kernels.nsys"),
        Format(name=kineto.NAME, recognises=kineto.recognises, module="kineto.reader"),
        Format(name=tensorflow.NAME, recognises=tensorflow.recognises, module="tensorflow.reader"),
        Format(
            name=ascend.NAME, recognises=ascend.recognises, module="ascend.reader", has_several_files=True
        ),
        Format(
            name=memscope.NAME,
            recognises=memscope.recognises,
            module="memscope.reader",
            has_several_files=True,
        ),
    )
}
"""By name, in the order in which they are asked, and in which they take the files of a folder."""


def format_of(probe: Probe) -> Format | None:
    """The first format that recognises a file."""
    return next((one for one in FORMATS.values() if one.recognises(probe)), None)
