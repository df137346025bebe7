"""What users import: ``from rankmem import connect, record, peak, step, annotate, parallel, tag``.

``connect`` opens a database or an aggregator and asks it; ``record`` and ``peak`` are for notebooks; the
others describe a training from within and do nothing where none is recorded. Importing this package loads
neither torch nor DuckDB, gRPC or Arrow.
"""

from rankmem.recording import Recording, peak, record
from rankmem_agent import __version__, annotate, parallel, step, tag
from rankmem_aggregator import connect
from rankmem_protos.errors import Code, RankmemError

__all__ = [
    "Code", "RankmemError", "Recording", "__version__", "annotate", "connect", "parallel", "peak", "record",
    "step", "tag",
]  # fmt: skip
