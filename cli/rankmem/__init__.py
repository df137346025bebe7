"""What users import: ``from rankmem import connect, record, peak, step, annotate, parallel, tag``.

``connect`` opens a database or an aggregator and asks it; ``record`` and ``peak`` are for notebooks; the
others describe a training from within and do nothing where none is recorded. Importing this package loads
neither torch nor DuckDB, gRPC or Arrow.
"""

from typing import TYPE_CHECKING

from rankmem_agent import __version__, annotate, parallel, step, tag
from rankmem_aggregator import connect
from rankmem_protos.errors import Code, RankmemError

if TYPE_CHECKING:
    from rankmem.recording import Recording, peak, record

__all__ = [
    "Code", "RankmemError", "Recording", "__version__", "annotate", "connect", "parallel", "peak", "record",
    "step", "tag",
]  # fmt: skip

_OF_RECORDING = ("Recording", "peak", "record")
"""Loaded when they are asked for: they triple the cost of importing this package, which trainings do."""


def __getattr__(name: str) -> object:
    if name not in _OF_RECORDING:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rankmem import recording

    return getattr(recording, name)
