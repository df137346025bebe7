"""Jobs of many ranks that never ran: what each rank holds by category, its coordinates, and planted faults.

Stage: tests. In: a seed. Out: bytes as a recording of such a job would give them, and which ranks hold more
than they should, and in which category. The layout nests dimensions in the orders that Megatron, DeepSpeed
and torchtitan use; activations follow the schedule 1F1B; sequences vary by replica, not by rank; experts vary
by expert-parallel group and stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

MIB: Final = 1 << 20
CATEGORIES: Final = (
    "parameter", "gradient", "optimizer_state", "activation", "input", "temporary", "autograd_detail",
    "unknown",
)  # fmt: skip
FAULTS: Final = ("activation", "unknown", "gradient", "temporary", "input", "optimizer_state")
ORDERS: Final = (("tp", "dp", "pp"), ("tp", "pp", "dp"), ("dp", "tp", "pp"))
"""Which dimension is innermost."""
HOST_RANKS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeJob:
    """A job; ranks are columns."""

    groups: NDArray[np.int64]
    """Bytes by category (row) and rank."""
    coordinates: dict[str, NDArray[np.intp]]
    hosts: NDArray[np.intp]
    faults: dict[int, str]
    """By faulty rank the category of what it holds too much."""
    host_faults: dict[int, str]
    """The same by host, all of whose ranks are faulty."""
    has_experts: bool


def made_job(seed: int, *, world: int = 1024, has_experts: bool = False) -> MadeJob:
    """A job of ``world`` ranks (a multiple of 64); all else is drawn from the seed."""
    rng = np.random.default_rng(seed)
    pp, tp = int(rng.choice([1, 2, 4, 8])), int(rng.choice([1, 2, 4, 8]))
    dp = world // pp // tp
    where = _nested({"tp": tp, "dp": dp, "pp": pp}, ORDERS[int(rng.integers(len(ORDERS)))])
    groups = np.zeros((len(CATEGORIES), world))
    of = {name: groups[row] for row, name in enumerate(CATEGORIES)}
    weights = rng.uniform(1500, 6000) * MIB
    stage_weights = weights * np.where(
        (where["pp"] == 0) | (where["pp"] == pp - 1), rng.uniform(1.1, 1.6), 1.0
    )
    shards = dp if rng.random() < 0.5 else 1
    of["parameter"] += stage_weights
    of["gradient"] += stage_weights
    of["optimizer_state"] += 4 * stage_weights / shards
    in_flight = np.minimum(pp - where["pp"], int(rng.integers(pp, 2 * pp + 1)))
    noise = float(rng.choice([0.003, 0.01, 0.02]))
    # A replica's ranks see the same sequences: one draw for each replica, a little more for each rank.
    lengths = rng.lognormal(0, noise, dp)[where["dp"]] * rng.lognormal(0, noise / 2, world)
    of["activation"] += rng.uniform(600, 2400) * MIB * in_flight * lengths
    of["temporary"] += np.where(where["pp"] == pp - 1, rng.uniform(1000, 4000), 300) * MIB * lengths
    of["input"] += rng.uniform(10, 60) * MIB * lengths
    of["autograd_detail"] += 20 * MIB
    of["unknown"] += rng.gamma(2, 12 * MIB, world) + (where["tp"] == 0) * rng.uniform(0, 120) * MIB
    if has_experts:
        ep = int(rng.choice([4, 8, 16]))
        where["ep"] = where["dp"] % ep
        load = rng.lognormal(0, 0.15, (pp, dp))[where["pp"], where["dp"]]
        of["activation"] += rng.uniform(800, 2000) * MIB * load
        of["parameter"] += 1500 * MIB
    faults: dict[int, str] = {}
    for rank in rng.choice(world, int(rng.integers(5, 13)), replace=False):
        kind = FAULTS[int(rng.integers(len(FAULTS)))]
        of[kind][rank] += rng.uniform(0.04, 0.25) * groups[:, rank].sum()
        faults[int(rank)] = kind
    hosts = np.arange(world) // HOST_RANKS
    host_faults: dict[int, str] = {}
    if rng.random() < 0.25:
        host = int(rng.integers(hosts.max() + 1))
        of["unknown"][hosts == host] += rng.uniform(0.08, 0.2) * groups.sum(axis=0).mean()
        host_faults[host] = "unknown"
    return MadeJob(
        groups=groups.astype(np.int64), coordinates=where, hosts=hosts, faults=faults,
        host_faults=host_faults, has_experts=has_experts,
    )  # fmt: skip


def _nested(sizes: dict[str, int], order: tuple[str, ...]) -> dict[str, NDArray[np.intp]]:
    ranks = np.arange(int(np.prod(list(sizes.values()))))
    found: dict[str, NDArray[np.intp]] = {}
    for name in order:
        found[name] = (ranks % sizes[name]).astype(np.intp)
        ranks = ranks // sizes[name]
    return found
