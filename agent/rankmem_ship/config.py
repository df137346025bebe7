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

    @staticmethod
    def from_environment(environment: Mapping[str, str] | None = None) -> ShipConfig:
        """The configuration of ``python -m rankmem_ship``.

        Raises:
            RankmemError: INVALID, with the variable and its value.
        """
        environment = os.environ if environment is None else environment
        credentials = Credentials.from_environment(environment)
        text = environment.get("RANKMEM_SHIP_DRAIN_S", "")
        if not text:
            return ShipConfig(credentials=credentials)
        try:
            drain_s = float(text)
        except ValueError:
            drain_s = math.nan
        if not 0 <= drain_s <= DRAIN_S_MAX:  # also refuses nan
            raise RankmemError(
                Code.INVALID,
                f"RANKMEM_SHIP_DRAIN_S is {text!r}",
                f"set it to seconds from 0 to {DRAIN_S_MAX:.0f}",
            )
        return ShipConfig(drain_s=drain_s, credentials=credentials)
