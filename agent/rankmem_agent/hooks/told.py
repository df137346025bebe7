"""What the training script tells of its own accord: named ranges and step boundaries.

Stage: trainer, the user's threads. Comes in: the user's calls. Goes out: MARKER and STEP records. Public
through :mod:`rankmem_agent`; imported in every process below ``rankmem run``, so it imports nothing itself.
Without an agent, in a forked child and inside a compiled region everything here does nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own is not worth its import here
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from rankmem_agent.hooks.recorder import Recorder
    from rankmem_agent.hooks.steps import Steps


class _Told:
    """Whom to tell, while the agent is on."""

    recorder: Recorder | None = None
    steps: Steps | None = None
    is_compiling: Callable[[], bool] | None = None
    markers: int = 0
    """Markers begun so far; the last one's id."""


class annotate:
    """Names what happens inside: ``with rankmem_agent.annotate("validation"): ...``.

    The range becomes a row of ``marker`` (kind ``annotate``), on this thread. Ranges may nest.
    """

    __slots__ = ("_marker", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._marker = 0

    def __enter__(self) -> annotate:
        recorder = _recorder()
        if recorder is not None:
            from rankmem_agent.spool.layout import Kind, MarkerKind  # loaded, since there is an agent

            _Told.markers += 1
            self._marker = _Told.markers
            name = recorder.intern(self._name)
            recorder.record(Kind.MARKER_BEGIN, action=MarkerKind.ANNOTATE, a=self._marker, e=name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        recorder = _recorder()
        if recorder is not None and self._marker:
            from rankmem_agent.spool.layout import Kind

            recorder.record(Kind.MARKER_END, a=self._marker)
            self._marker = 0


def step() -> None:
    """Says that a training step has ended here; from the first call on, optimizers end none.

    For trainings whose optimizers do not tell the steps: custom optimizers, many optimizers in turns.
    """
    if _recorder() is not None and _Told.steps is not None:
        _Told.steps.told()


def connect(recorder: Recorder, steps: Steps, is_compiling: Callable[[], bool]) -> None:
    """Called by the agent when it is on."""
    _Told.recorder, _Told.steps, _Told.is_compiling = recorder, steps, is_compiling


def disconnect() -> None:
    """Called by the agent when it is off, and in a forked child: whatever was connected is forgotten."""
    _Told.recorder = _Told.steps = None


def _recorder() -> Recorder | None:
    """Whom to tell, or None: a foreign call inside a region that is being compiled would break its graph."""
    if _Told.recorder is None or (_Told.is_compiling is not None and _Told.is_compiling()):
        return None
    return _Told.recorder
