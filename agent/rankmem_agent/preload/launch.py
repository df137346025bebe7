"""The environment in which ``rankmem run`` starts the user's command.

Stage: before the trainer, in the process of the command line. Comes in: an environment and what the user
chose. Goes out: a new environment that makes the agent wake up in every rank below and nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rankmem_protos.credentials import CLIENT_VARIABLES, Credentials

_NOT_INHERITED: Final = CLIENT_VARIABLES | {"RANKMEM_CLAIMED", "RANKMEM_LAUNCH"}
"""Another candidate's mark, and credentials for another aggregator."""
SITE: Final = Path(__file__).resolve().parent / "site"
"""The folder that goes first on PYTHONPATH."""


def environment(
    base: Mapping[str, str],
    *,
    session_id: str,
    aggregator: str,
    credentials: Credentials | None = None,
    name: str | None = None,
    spool_dir: Path | None = None,
    drain_s: float = 0.0,
) -> dict[str, str]:
    """``base`` with the agent preloaded; ``base`` is not changed.

    Args:
        base: usually ``os.environ``.
        session_id: from :func:`rankmem_agent.session_ids.make_session_id`.
        aggregator: HOST:PORT that the shipper sends to.
        credentials: for the aggregator; None: none, whatever ``base`` has. Their paths travel, no secret.
        name: the session's name; None: the script's.
        spool_dir: root of the spools; None: chosen on each host.
        drain_s: how long, in seconds, the last rank of a host waits for the last acknowledgement; 0: the
            caller waits.
    """
    lone = f"{SITE}{os.sep}"  # see _LONE in sitecustomize.py
    given = base.get("PYTHONPATH", "")
    paths = [] if given in ("", lone) else given.split(os.pathsep)
    # An empty entry is the working directory, as in ``$PYTHONPATH:/lib`` of a variable that was not set.
    paths = ["" if path == lone else path for path in paths if path != str(SITE)]
    first = str(SITE) if paths else lone
    kept = {key: value for key, value in base.items() if key not in _NOT_INHERITED}
    preloaded = (
        kept
        | (credentials or Credentials()).environment()
        | {
            "PYTHONPATH": os.pathsep.join(dict.fromkeys([first, *paths])),
            "RANKMEM_PRELOAD": "1",
            "RANKMEM_SESSION": session_id,
            "RANKMEM_AGGREGATOR": aggregator,
            "RANKMEM_DRAIN_S": f"{drain_s:g}",
        }
    )
    if name is not None:
        preloaded["RANKMEM_NAME"] = name
    if spool_dir is not None:
        preloaded["RANKMEM_SPOOL_DIR"] = str(spool_dir.absolute())
    return preloaded
