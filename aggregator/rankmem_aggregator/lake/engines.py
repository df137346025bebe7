"""The engine of an address.

Stage: query, in the reader's process. Packages of clusters are imported where an address asks for one.
"""

from __future__ import annotations

import re
from typing import Final

from rankmem_aggregator.lake.engine import Engine
from rankmem_aggregator.lake.on_ray import OnRay
from rankmem_aggregator.lake.on_spark import OnSpark
from rankmem_aggregator.lake.processes import Processes
from rankmem_protos.errors import Code, RankmemError

PROCESSES: Final = "processes"
PROCESSES_MAX: Final = 256
"""Of one reader; more belong on more machines."""
_ADDRESS: Final = re.compile(r"(?:(ray|sc)://)?([A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\]):(\d{1,5})((?:/.*)?)")


def open_engine(address: str) -> Engine:
    """The engine of an address.

    Args:
        address: ``processes:N``: N worker processes on this machine. ``ray://HOST:PORT``: a Ray cluster,
            through its client server; ``HOST:PORT``: the same from one of its machines, as ``ray start``
            prints it. ``sc://HOST:PORT``: a Spark Connect server, with its parameters: ``/;use_ssl=true``.

    Raises:
        RankmemError: INVALID for an address that is none of these, UNAVAILABLE where nothing answers there,
            UNSUPPORTED for a package that is not installed, or of another version than there.
    """
    found = _ADDRESS.fullmatch(address)
    scheme, host, number, parameters = found.groups() if found else (None, "", "0", "")
    if host == PROCESSES and scheme is None:
        if 1 <= int(number) <= PROCESSES_MAX and not parameters:
            return Processes(int(number))
    elif 1 <= int(number) < 1 << 16:
        if scheme == "sc":
            return OnSpark(address, host, int(number))
        if not parameters:
            return OnRay(address, host, int(number))
    raise RankmemError(
        Code.INVALID,
        f"{address!r} is no engine",
        f"{PROCESSES}:N, with N from 1 to {PROCESSES_MAX}: worker processes here; ray://HOST:PORT: "
        "a Ray cluster; HOST:PORT: the same from one of its machines; sc://HOST:PORT: a Spark Connect server",
    )
