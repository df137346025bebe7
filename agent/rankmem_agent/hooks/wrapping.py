"""Functions of torch's that the agent listens to, wrapped so that their callers notice nothing.

Stage: trainer, the user's threads. Comes in: a genuine function and what to do after it. Goes out: a function
that is called alike, whatever its parameters are called and will be called in later versions, and that
returns and raises the same. Its frame stands on the stack while the genuine function runs, where a
profiler sees it (there is no call without a frame in Python), but in no traceback.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

TensorSink = Callable[[Any], None]
"""Takes tensors in containers, or a function that gives them; raises nothing."""


class Call(NamedTuple):
    """The arguments of a call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def wrapped(
    genuine: Callable[..., Any],
    *,
    before: Callable[[Call], object] | None = None,
    after: Callable[[Call, Any], object] | None = None,
    lastly: Callable[[Call], object] | None = None,
) -> Callable[..., Any]:
    """``genuine`` with callbacks around its calls. The callbacks must not raise.

    Args:
        before: called with the call.
        after: called with the call and its result, unless it raised.
        lastly: called with the call, however it ended.
    """

    @functools.wraps(genuine)
    def around(*args: Any, **kwargs: Any) -> Any:
        call = Call(args, kwargs)
        if before is not None:
            before(call)
        try:
            result = genuine(*args, **kwargs)
        except BaseException as error:
            leave_traceback(error)
            raise
        finally:
            if lastly is not None:
                lastly(call)
        if after is not None:
            after(call, result)
        return result

    return around


def leave_traceback(error: BaseException) -> None:
    """Takes the caller's frame out of the traceback; to be followed by a bare ``raise``."""
    traceback = error.__traceback__
    if traceback is not None:
        error.__traceback__ = traceback.tb_next
