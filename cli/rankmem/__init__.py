"""What users import: ``from rankmem import connect, step, annotate, parallel, tag``.

``connect`` opens a database or an aggregator and asks it; the others describe a training from within and do
nothing where none is recorded. Importing this package loads neither torch nor DuckDB, gRPC or Arrow.
"""

from rankmem_agent import __version__, annotate, parallel, step, tag
from rankmem_aggregator import connect
from rankmem_protos.errors import Code, RankmemError

__all__ = ["Code", "RankmemError", "__version__", "annotate", "connect", "parallel", "step", "tag"]
