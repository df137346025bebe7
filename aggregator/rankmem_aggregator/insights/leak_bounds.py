"""What grows, and ends all the same: with the sizes of inputs, or with the gradients and state of the model.

Stage: query; pure functions over numbers. In: what a group of blocks holds after each step, and what bounds
it. Out: what its growth is, or why that is not sure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rankmem_aggregator.insights.trend import warm_up

Numbers = NDArray[np.float64]

GRADIENT: Final = "gradient"
STATE: Final = "optimizer_state"
PARAMETER: Final = "parameter"
OF_MODEL: Final = (GRADIENT, STATE, PARAMETER)
INPUT: Final = "input"
STATE_TIMES: Final = 8
"""State of the optimizer at most, by the parameters: of those in 2 bytes two moments and a copy in 4 each are
6 times as much; and counts of steps."""
HISTORY_TIMES: Final = {"LBFGS": 2 * 100}
"""What an optimizer keeps of steps before, by its parameters. Source: torch.optim.LBFGS (2.13), pairs of
vectors, history_size=100."""
FALLS_LEAST: Final = 3
"""So often what is held falls with the input, until nothing else is as likely."""
WIDTH_SHARE: Final = 0.1
"""How far the ratio of what is held to the input may vary, by how far the input does."""

GROWING_INPUT: Final = (
    "all of it is made anew in each step and inputs grow as well, so that it may be what these need"
)
UNKNOWN_INPUT: Final = "all of it is made anew in each step, and what the model was given is not recorded"
EVEN_SIZES: Final = (
    "growth or new sizes come at even distances, as they would if something were kept of each epoch"
)
FIRST_USED: Final = (
    "it may be the state of parameters that are used for the first time: here no gradient outlives a step "
    "and could show it"
)
GROWING_MODEL: Final = "these are parameters or grow with them, and a model may be meant to grow"


def of_input(series: NDArray[np.int64], sizes: Iterable[Numbers]) -> str | None:
    """Whether what each step makes anew is as large as its own input needs.

    Args:
        series: bytes after each step.
        sizes: of the inputs of each step in several ways, NaN where they are not known.

    Returns:
        :data:`INPUT`: it is. Another text: why that is not sure. None: it is not.
    """
    start = warm_up(len(series))
    held = series[start:].astype(np.float64)
    found = [_follows(held, each[start:]) for each in sizes]
    if INPUT in found:
        return INPUT
    unsure = [each for each in found if each is not None]
    return unsure[0] if unsure else None


def _follows(held: Numbers, sizes: Numbers) -> str | None:
    known = np.flatnonzero(~np.isnan(sizes))
    if len(known) < 2:
        return UNKNOWN_INPUT
    own, of = held[known], sizes[known]
    order = np.lexsort((own, of))
    rises, of_rises = np.diff(own[order]), np.diff(of[order])
    if (rises < 0).any() or (rises[of_rises == 0] != 0).any():
        return None
    if len(known) < len(held):
        return UNKNOWN_INPUT
    falls = int((np.diff(own) < 0).sum())
    return INPUT if falls >= FALLS_LEAST or _is_proportional(own, of) else GROWING_INPUT


def _is_proportional(held: Numbers, sizes: Numbers) -> bool:
    """To the input or its square, as attention's scores are."""
    if sizes.min() <= 0 or held.min() <= 0:
        return False
    most = 1 + WIDTH_SHARE * min(1.0, sizes.max() / sizes.min() - 1)
    return any(np.ptp(np.log(held / sizes**power)) <= np.log(most) for power in (1, 2))


def parameter_bytes(changes: pa.Table, num_steps: int, track: tuple[int, int, str]) -> NDArray[np.int64]:
    """The bytes of a model's parameters on a device of a rank, after each step.

    Args:
        changes: the rows of ``held_after_steps``.
        num_steps: of the rank.
        track: attempt, rank and device.
    """
    own = pc.field("kind") == PARAMETER
    for name, value in zip(("attempt", "rank", "device"), track, strict=True):
        own &= pc.field(name) == value
    rows = changes.filter(own)
    series = np.zeros(num_steps, np.int64)
    np.add.at(series, rows["place"].to_numpy(), rows["change_bytes"].to_numpy())
    return np.cumsum(series)


def grows_with_model(
    series: NDArray[np.int64], of_kind: NDArray[np.int64], parameters: NDArray[np.int64], times: int
) -> bool:
    """Whether gradients or state grow only when the parameters do, and no further than these explain.

    Args:
        series, of_kind: as for :func:`of_model`.
        parameters: as :func:`parameter_bytes` has them.
        times: so often their bytes at most.
    """
    start = warm_up(len(series))
    rises, of_parameters = (np.diff(each[start:]) > 0 for each in (series, parameters))
    of_parameters[1:] |= of_parameters[:-1]  # what is added after backward is trained in the next step
    return bool(of_kind[-1] <= times * parameters[-1] and (rises <= of_parameters).all())


def of_model(
    series: NDArray[np.int64],
    of_kind: NDArray[np.int64],
    gradients: NDArray[np.int64],
    parameters: int,
    optimizers: Collection[str],
) -> str | None:
    """What bounds a group of gradients, or of the optimizer's state; None where nothing is known to.

    Args:
        series: bytes after each step.
        of_kind: of all such blocks of the device.
        gradients: of all gradients there; the same where the group holds gradients.
        parameters: their bytes, which do not grow.
        optimizers: classes of those that step.
    """
    if not parameters:
        return None
    times = of_kind[-1] / parameters
    if of_kind is gradients:
        return "gradients, no more than the parameters" if times <= 1 else None
    for name in sorted(HISTORY_TIMES.keys() & set(optimizers)):
        if times <= STATE_TIMES + HISTORY_TIMES[name]:
            return f"state of the optimizer, no more than {name}'s usual history"
    start = warm_up(len(series))
    rises, of_gradients = (np.diff(each[start:]) > 0 for each in (series, gradients))
    # Without gradients that outlive a step nothing shows which parameters are new to the optimizer.
    is_alone = gradients[start:].any() and bool((rises & ~of_gradients).any())
    if times <= STATE_TIMES and not is_alone:
        return "state of the optimizer, no more than its parameters explain"
    return None
