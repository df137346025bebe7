"""The shipper's configuration: the environment is read here and nowhere else in its process.

Stage: shipper process, at its start. ``rankmem ship DIR`` makes one from its own arguments.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from rankmem_protos.credentials import Credentials
from rankmem_protos.errors import Code, RankmemError

DRAIN_S_DEFAULT: Final = 300.0
"""Five minutes: an aggregator that is restarted on another node is back by then."""
DRAIN_S_MAX: Final = 7 * 86_400.0
"""Of RANKMEM_SHIP_DRAIN_S: a week; after that the spools stay on disk."""
EDGE_BYTES_DEFAULT: Final = 4 << 30
"""Some 400 million events."""
EDGE_BYTES_MIN: Final = 64 << 20
"""Several files of each rank of a host: less would be gone before it is asked for."""
EDGE_STAY_S_DEFAULT: Final = 3600.0
"""An hour, to look at what a job left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShipConfig:
    """The settings of a shipper."""

    aggregator: str = ""
    """HOST:PORT to ship to. Default: the one that the spools name."""
    credentials: Credentials = field(default_factory=Credentials)
    """Credentials for the aggregator. Default: those that the spools name, for the aggregator that they name.
    Environment: RANKMEM_TLS_CA, RANKMEM_TLS_CERT, RANKMEM_TLS_KEY, RANKMEM_TOKEN_FILE, RANKMEM_INSECURE."""
    drain_s: float = DRAIN_S_DEFAULT
    """Seconds to go on trying after the last rank has gone; then the spools stay on disk.
    Default 300. Environment: RANKMEM_SHIP_DRAIN_S."""
    grace_s: float = 1.0
    """Seconds without a spool or a rank before the shipper leaves."""
    first_spool_s: float = 30.0
    """Seconds to wait for the session's first spool: a rank starts the shipper while it builds its tap."""
    edge_bytes: int = 0
    """Rows of events stay on this host, in so many bytes of a session, if the aggregator writes a lake;
    0: all are sent. Default 0; on: 4 GiB. Environment: RANKMEM_EDGE off, on or a number of bytes."""
    edge_stay_s: float = EDGE_STAY_S_DEFAULT
    """Seconds for which the shipper stays after the last rank, to send rows that are asked for. Default 3600.
    Environment: RANKMEM_EDGE_STAY_S."""

    @staticmethod
    def from_environment(environment: Mapping[str, str] | None = None) -> ShipConfig:
        """The configuration of ``python -m rankmem_ship``.

        Raises:
            RankmemError: INVALID, with the variable and its value.
        """
        environment = os.environ if environment is None else environment
        credentials = Credentials.from_environment(environment)
        return ShipConfig(
            drain_s=_seconds(environment, "RANKMEM_SHIP_DRAIN_S", DRAIN_S_DEFAULT),
            credentials=credentials,
            edge_bytes=_edge_bytes(environment.get("RANKMEM_EDGE", "")),
            edge_stay_s=_seconds(environment, "RANKMEM_EDGE_STAY_S", EDGE_STAY_S_DEFAULT),
        )


def _seconds(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= DRAIN_S_MAX:  # also refuses nan
        raise RankmemError(
            Code.INVALID, f"{name} is {text!r}", f"set it to seconds from 0 to {DRAIN_S_MAX:.0f}"
        )
    return value


def _edge_bytes(text: str) -> int:
    if text in ("", "off", "on"):
        return EDGE_BYTES_DEFAULT if text == "on" else 0
    if not text.isdecimal() or int(text) < EDGE_BYTES_MIN:
        raise RankmemError(
            Code.INVALID,
            f"RANKMEM_EDGE is {text!r}",
            f"set it to on, off, or the bytes that rows of events may take on a host, from {EDGE_BYTES_MIN}",
        )
    return int(text)
