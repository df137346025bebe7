"""Packages that only some installations have: the extras of ``pip install 'rankmem[EXTRA]'``.

Stage: before what needs them; pure but for the look at what is installed. Loads none of them.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from rankmem_protos.errors import Code, RankmemError

PACKAGES: Final = {
    "page": ("starlette", "uvicorn"),
    "lake": ("deltalake", "fsspec"),
    "plots": ("matplotlib",),
    "certs": ("cryptography",),
    "otlp": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
}
"""By extra the modules whose absence says that it is not installed."""


def require_extra(extra: str, what: str, otherwise: str = "") -> None:
    """Checks that an extra is installed.

    Args:
        extra: a key of :data:`PACKAGES`.
        what: what needs it, as the subject of the error's sentence.
        otherwise: what the user can do without it.

    Raises:
        RankmemError: UNSUPPORTED, with the command that installs it.
    """
    missing = [name for name in PACKAGES[extra] if not _is_installed(name)]
    if missing:
        raise RankmemError(
            Code.UNSUPPORTED,
            f"{what} needs {' and '.join(missing)}, not installed here",
            f"pip install 'rankmem[{extra}]'{otherwise and f'; {otherwise}'}",
        )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of a package around it
        return False
