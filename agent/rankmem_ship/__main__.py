"""``python -m rankmem_ship SESSION_DIR``: the shipper process, as a rank starts it.

Stage: shipper process, its error boundary. Prints nothing except usage errors; its log is shipper.log in the
session's folder. Exit status 0: all delivered, or another shipper is at work; 1: spools were left on disk; 2:
usage error.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from rankmem_agent.spool.election import LOG_NAME
from rankmem_protos.errors import RankmemError
from rankmem_protos.without_pandas import leave_pandas_out
from rankmem_ship.config import ShipConfig
from rankmem_ship.service import Service

logger = logging.getLogger("rankmem_ship")


def main(arguments: list[str]) -> int:
    """Run the shipper for the given session folder; returns the exit status."""
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        print("Error: exactly one argument is required, the folder of a session", file=sys.stderr)
        print("Try: rankmem ship DIR", file=sys.stderr)
        return 2
    leave_pandas_out()
    session_dir = Path(arguments[0]).absolute()
    logging.basicConfig(
        filename=session_dir / LOG_NAME,
        level=logging.INFO,
        format="%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s",
    )
    try:
        return Service(session_dir, ShipConfig.from_environment()).run()
    except RankmemError as exc:
        logger.error("%s", exc)
        return 1
    except Exception:
        logger.exception("the shipper failed with an internal error")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
