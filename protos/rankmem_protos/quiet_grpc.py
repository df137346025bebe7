"""gRPC without its own lines on stderr: failures are raised, and the caller reports them once.

Stage: wire, the client's end, in the shipper and in readers. A handshake that fails is logged by gRPC's core
(1.74 to 1.85) in its own form, onto the terminal of the user whose training has just ended. Its level is read
from the environment when it is loaded, and removed again, so that children do not inherit it. A level that
the user has set stays.
"""

from __future__ import annotations

import os
from typing import Final

_LEVEL: Final = "GRPC_VERBOSITY"
_IS_ASKED_FOR: Final = _LEVEL in os.environ or "GRPC_TRACE" in os.environ

if not _IS_ASKED_FOR:
    os.environ[_LEVEL] = "ERROR"
try:
    import grpc
finally:
    if not _IS_ASKED_FOR:
        os.environ.pop(_LEVEL, None)

__all__ = ["grpc"]
