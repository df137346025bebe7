"""``python -m rankmem_agent train.py ARGS...``: a training with the agent, where nothing was preloaded.

Stage: trainer; ``torchrun ... -m rankmem_agent train.py --lr 1e-3`` does to each worker what ``rankmem
run`` does to a whole command. Comes in: a script (or ``-m MODULE``) and its arguments. Goes out: the
process of that script, as ``python`` itself would run it: ``sys.argv``, ``sys.path[0]``, ``__main__``, exit
code, and tracebacks that begin in the user's code. The launcher itself is not followed; start it with
``rankmem run`` for that.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from types import ModuleType, TracebackType
from typing import Final, NoReturn

from rankmem_agent.preload import rank_detection, start

USAGE: Final = "usage: python -m rankmem_agent [-m MODULE | SCRIPT] [ARGUMENTS...]"
_OUR_FRAMES: Final = frozenset({__file__, "<frozen runpy>", runpy.__file__})
_our_main = sys.modules.get("__main__")
"""Kept: the user's program takes its name in sys.modules, and this code must not die with it."""


def main(arguments: Sequence[str]) -> None:
    """Runs the user's program as ``__main__`` with the agent attached after its import of torch."""
    if not arguments or arguments[0] in ("-h", "--help") or list(arguments) == ["-m"]:
        _show_usage(arguments)
    mine = rank_detection.detect_rank(os.environ, [sys.executable, "-m", "__main__"])
    if mine is not None:
        mine.is_given = True
        start.attach_after_torch(mine)
    try:
        if arguments[0] == "-m":
            _run_module(arguments[1:])
        elif os.path.isdir(arguments[0]) or arguments[0].endswith((".zip", ".pyz")):
            _run_archive(arguments)
        else:
            _run_script(arguments)
    except BaseException:
        _hide_our_frames()
        raise


def _show_usage(arguments: Sequence[str]) -> NoReturn:
    wanted = bool(arguments) and arguments[0] in ("-h", "--help")
    print(USAGE, file=sys.stdout if wanted else sys.stderr)
    raise SystemExit(0 if wanted else 2)


def _run_script(arguments: Sequence[str]) -> None:
    """As ``python SCRIPT``: the module __main__ is the script's own and stays there after its last line."""
    script = arguments[0]
    sys.argv = list(arguments)
    _set_path(os.path.dirname(os.path.realpath(script)))
    path = os.path.abspath(script)
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        message = f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}"
        print(message, file=sys.stderr)
        raise SystemExit(2) from None
    module = _new_main()
    module.__file__ = path
    module.__dict__["__cached__"] = None
    module.__loader__ = SourceFileLoader("__main__", path)
    exec(compile(source, path, "exec"), module.__dict__)


def _run_module(arguments: Sequence[str]) -> None:
    """As ``python -m MODULE``: runpy's own entry for it, which is what the interpreter calls."""
    sys.argv = ["-m", *arguments[1:]]  # runpy puts the module's path in place of -m
    _set_path(os.getcwd())
    _new_main()
    runpy._run_module_as_main(arguments[0])  # type: ignore[attr-defined]


def _run_archive(arguments: Sequence[str]) -> None:
    """As ``python FOLDER`` or ``python FILE.zip``: the __main__ inside."""
    sys.argv = list(arguments)
    if not sys.flags.safe_path:
        del sys.path[0]  # run_path puts the archive there
    runpy.run_path(arguments[0], run_name="__main__")


def _new_main() -> ModuleType:
    module = ModuleType("__main__")
    module.__dict__["__builtins__"] = sys.modules["builtins"]
    sys.modules["__main__"] = module
    return module


def _set_path(first: str) -> None:
    """``python -m rankmem_agent`` has put the working directory first on sys.path, without -P."""
    if not sys.flags.safe_path:
        sys.path[0] = first


def _hide_our_frames() -> None:
    """Lets the traceback that Python prints at the end begin with the user's first frame."""
    shown = sys.excepthook

    def without_ours(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        while traceback is not None and traceback.tb_frame.f_code.co_filename in _OUR_FRAMES:
            traceback = traceback.tb_next
        shown(kind, error.with_traceback(traceback), traceback)

    sys.excepthook = without_ours


if __name__ == "__main__":
    main(sys.argv[1:])
