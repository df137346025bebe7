"""Calls for the training script: named ranges, steps, tensors, its place among the ranks.

Stage: trainer, the user's threads. Comes in: the user's calls. Goes out: MARKER, STEP and NOTE records.
Public through :mod:`rankmem_agent`; imported in every process below ``rankmem run``, so it imports next to
nothing itself. Without an agent, in a forked child and inside a compiled region everything here does nothing.
"""

from __future__ import annotations

from itertools import count

TYPE_CHECKING = False  # typing's own is not worth its import here
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

    from rankmem_agent.hooks.parallel import Parallel
    from rankmem_agent.hooks.recorder import Recorder
    from rankmem_agent.hooks.steps import Steps
    from rankmem_agent.spool.layout import MarkerKind

FIRST_MARKER = 1 << 48
"""Ids of ranges opened in Python; the tap numbers those of torch from 1."""


class _Connected:
    """Receivers of the calls while the agent is on."""

    recorder: Recorder | None = None
    steps: Steps | None = None
    parallel: Parallel | None = None
    at_step: Callable[[], None] | None = None
    spool_dir: Callable[[], Path] | None = None
    is_compiling: Callable[[], bool] | None = None
    markers = count(FIRST_MARKER)
    """The next marker's id; taken from it in one piece, whatever the threads do."""


class annotate:
    """Names what happens inside: ``with rankmem_agent.annotate("validation"): ...``.

    The range becomes a row of ``marker`` (kind ``annotate``), on this thread. Ranges may nest.
    """

    __slots__ = ("_marker", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._marker = 0

    def __enter__(self) -> annotate:
        if _recorder() is not None:
            from rankmem_agent.spool.layout import MarkerKind  # loaded, since there is an agent

            self._marker = begin_range(self._name, MarkerKind.ANNOTATE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._marker:
            end_range(self._marker)
            self._marker = 0


def begin_range(name: str, kind: MarkerKind) -> int:
    """Opens a range on this thread; its id, or 0 where nothing is recorded."""
    recorder = _recorder()
    if recorder is None:
        return 0
    from rankmem_agent.spool.layout import Kind

    marker = next(_Connected.markers)
    recorder.record(Kind.MARKER_BEGIN, marker_kind=kind, marker_id=marker, name=recorder.intern(str(name)))
    return marker


def end_range(marker: int) -> None:
    """Closes a range, on whatever thread."""
    recorder = _recorder()
    if recorder is not None:
        from rankmem_agent.spool.layout import Kind

        recorder.record(Kind.MARKER_END, marker_id=marker)


def step() -> None:
    """Marks the end of a training step. Once it has been called, steps of optimizers no longer end one.

    For trainings whose optimizers do not show the steps: custom optimizers, or many that take turns.
    """
    end_step()


def end_step() -> int | None:
    """The same; the number of the step that it ended, None where nothing is recorded."""
    steps = _Connected.steps
    if _recorder() is None or steps is None:
        return None
    if _Connected.at_step is not None:
        _Connected.at_step()
    steps.ended_by_user()
    return steps.number - 1


def leave_steps_to_calls() -> None:
    """From here on :func:`step` alone ends steps, from the first one on."""
    if _recorder() is not None and _Connected.steps is not None:
        _Connected.steps.leave_to_user()


def spool_dir() -> Path | None:
    """The folder of this process's log now; None where nothing is recorded."""
    return None if _Connected.spool_dir is None else _Connected.spool_dir()


def tag(tensors: object, category: str, *, name: str = "") -> None:
    """Gives tensors a category: ``rankmem_agent.tag(cache, "kv_cache")``.

    For what nothing else shows: caches of keys and values, the state of an optimizer that is not from
    torch.optim, plain tensors that are trained or kept. The blocks that hold them count as this from the
    moment they were allocated; this overrides hooks and rules.

    Args:
        tensors: a tensor, or tensors in lists, tuples, mappings and attributes, nested to any depth.
        category: one of ``rankmem_protos.categories.CATEGORY_NAMES``.
        name: what to call them in the recording.

    Raises:
        ValueError: there is no such category. Raised even when nothing is recorded.
    """
    from rankmem_protos.categories import CATEGORY_NAMES  # here: this module imports next to nothing

    if category not in CATEGORY_NAMES:
        raise ValueError(f"no category {category!r}; there are {', '.join(CATEGORY_NAMES)}")
    recorder = _recorder()
    if recorder is not None:
        from rankmem_agent.hooks.plain_tensors import tag_tensors

        tag_tensors(recorder, tensors, category, name)


def parallel(
    *,
    dp: int | None = None,
    tp: int | None = None,
    pp: int | None = None,
    cp: int | None = None,
    ep: int | None = None,
) -> None:
    """Records this rank's data, tensor, pipeline, context and expert parallel coordinates.

    For trainings that use neither a torch ``DeviceMesh`` with named dimensions nor Megatron; it takes
    precedence over both. May be called again as more becomes known.
    """
    if _recorder() is None or _Connected.parallel is None:
        return
    given = {"dp": dp, "tp": tp, "pp": pp, "cp": cp, "ep": ep}
    _Connected.parallel.set_by_user({name: int(at) for name, at in given.items() if at is not None})


def connect(
    recorder: Recorder,
    steps: Steps,
    is_compiling: Callable[[], bool],
    parallel: Parallel | None = None,
    at_step: Callable[[], None] | None = None,
    spool_dir: Callable[[], Path] | None = None,
) -> None:
    """Called by the agent when it is on.

    Args:
        at_step: called when the user ends a step, before it is counted.
        spool_dir: where the log is; it moves once.
    """
    _Connected.recorder, _Connected.steps, _Connected.is_compiling = recorder, steps, is_compiling
    _Connected.parallel, _Connected.at_step, _Connected.spool_dir = parallel, at_step, spool_dir


def disconnect() -> None:
    """Called by the agent when it is off, and in a forked child: whatever was connected is forgotten."""
    _Connected.recorder = _Connected.steps = _Connected.parallel = _Connected.at_step = None
    _Connected.spool_dir = None


def _recorder() -> Recorder | None:
    """The recorder, or None: a foreign call inside a region that is being compiled would break its graph."""
    if _Connected.recorder is None or (_Connected.is_compiling is not None and _Connected.is_compiling()):
        return None
    return _Connected.recorder
