"""Found first by every Python below ``rankmem run``, because this folder leads PYTHONPATH.

Stage: trainer, before the user's first line. It first runs the ``sitecustomize`` that would have been found
without us, then asks :mod:`rankmem_agent.preload.rank_detection` whether this process is a rank; in all
others it does nothing more. It must cost next to nothing (``os`` and ``sys`` are loaded anyway), print
nothing, and never raise.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_LONE = _HERE + os.sep
"""How ``rankmem run`` writes this folder where PYTHONPATH was not set. A script that extends the variable
(``$PYTHONPATH:/lib``) would have left an empty entry without us: the working directory."""


def _run_next_sitecustomize() -> None:
    """Runs the next sitecustomize on sys.path under its own name, as if this folder were not there.

    Its errors are site's to report, as without us; having none is the usual case.
    """
    ours = [entry for entry in sys.path if entry and os.path.abspath(entry) == _HERE]
    for entry in ours:
        _remove(entry)  # the user's program sees its own sys.path
    this = sys.modules.pop("sitecustomize", None)
    try:
        # Another file of this name, now that ours is off the path.
        __import__("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        if this is not None:
            sys.modules["sitecustomize"] = this


def _remove(entry: str) -> None:
    place = sys.path.index(entry)
    del sys.path[place]
    given = os.environ.get("PYTHONPATH", "")
    if given != _LONE and _LONE in given.split(os.pathsep):
        try:
            working = os.getcwd()
        except OSError:  # it is gone
            return
        if working not in sys.path:
            sys.path.insert(place, working)


def _attach_if_rank() -> None:
    if os.environ.get("RANKMEM_PRELOAD") != "1" or os.environ.get("RANKMEM_DISABLE") == "1":
        return
    try:
        from rankmem_agent.preload import start
    except ModuleNotFoundError:
        # Another Python than rankmem's: only a rank is worth a line.
        if "LOCAL_RANK" in os.environ and sys.stderr is not None:
            line = f"rankmem: not installed for {sys.executable}: this rank is not recorded\n"
            try:  # noqa: SIM105  contextlib is not worth its import here
                os.write(2, os.fsencode(line))  # what a buffer keeps would make the exit code 120
            except OSError:
                pass
        return
    start.attach_if_rank()


try:
    _run_next_sitecustomize()
finally:
    _attach_if_rank()
