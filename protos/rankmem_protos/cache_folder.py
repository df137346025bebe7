"""The folder of this user's caches: what lies there is loaded or copied, so nobody else may write to it.

Stage: any. In: the environment; out: a path. Standard library only.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from rankmem_protos.errors import Code, RankmemError


def cache_folder(variable: str | None = None) -> Path:
    """The folder, ``$XDG_CACHE_HOME/rankmem`` or ``~/.cache/rankmem``, made if absent, for this user alone.

    Args:
        variable: of the environment, which may name another one.

    Raises:
        RankmemError: UNSUPPORTED if it cannot be made, DENIED if it belongs to another user or others may
            write to it.
    """
    hint = f"name a folder of your own in {variable or 'XDG_CACHE_HOME'}"
    named = os.environ.get(variable) if variable else None
    try:
        path = Path(named) if named else _default()
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = path.stat()
    except (OSError, RuntimeError) as exc:
        raise RankmemError(Code.UNSUPPORTED, f"cannot use {named or 'a cache folder'}: {exc}", hint) from exc
    if facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) & 0o022:
        message = f"{path} belongs to another user or is writable by others, so what lies in it is not loaded"
        raise RankmemError(Code.DENIED, message, hint)
    return path


def _default() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rankmem"
