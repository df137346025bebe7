"""pyarrow without pandas, in the processes that are rankmem's alone.

Stage: wire; called first by a process's entry: the shipper, an aggregator, the command line. With the first
array that it makes of Python values, pyarrow (26) imports pandas where it is installed, to see whether the
values are a Series: 0.3 s of CPU time and 45 MiB in each of these processes, one of which is beside every
training. None of them uses pandas. A process of the user's, as a notebook, is left alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

_NAME = "pandas"


class _LeftOut(MetaPathFinder):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname == _NAME:
            raise ModuleNotFoundError(f"{_NAME} is left out of this process", name=fullname)


_left_out = _LeftOut()


def leave_pandas_out() -> None:
    """From now on an import of pandas fails in this process, as where it is not installed."""
    if _left_out not in sys.meta_path:
        sys.meta_path.insert(0, _left_out)


def admit_pandas() -> None:
    """Takes :func:`leave_pandas_out` back, for a package that needs it."""
    if _left_out in sys.meta_path:
        sys.meta_path.remove(_left_out)
