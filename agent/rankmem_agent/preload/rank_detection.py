"""Which rank this process would be: known at interpreter start, from the launcher's variables alone.

Stage: trainer, and every other Python process below ``rankmem run``: so it imports ``os`` and a few
numbers, reads the environment itself (see ``docs/internals.md`` for the names) and prints nothing. Each
process but a launcher is a candidate; it becomes the rank when it trains
(:mod:`rankmem_agent.preload.candidate`). A candidate marks the environment: the children that inherit the
mark (subprocesses, DataLoader workers) compete with it for one place; a worker with other launcher variables
than its parent's has its own.
"""

from __future__ import annotations

import os

from rankmem_protos.bounds import RANKS_MAX

TYPE_CHECKING = False  # typing's own is not worth its import here
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Final

MARK: Final = "RANKMEM_CLAIMED"
"""``PID KEY``: the nearest candidate above and what it would be; see :meth:`DetectedRank.mark`."""

LAUNCH: Final = "RANKMEM_LAUNCH"
"""The process that launched the first candidate with this key: a launcher, or that candidate itself."""

PLAIN: Final = "plain"
"""The key of a script that no launcher started: rank 0 of 1."""

RANK_VARIABLES: Final = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
)
"""How launchers number ranks: rank, ranks, rank on this host, ranks on this host. Of torchrun, Open MPI,
MPICH and Intel MPI, srun; the first that is set counts. A Slurm batch script has the job's number of tasks
and is none of them: only a step has a number."""

LAUNCHER_PROGRAMS: Final = frozenset(
    {"torchrun", "torchx", "accelerate", "accelerate-launch", "deepspeed", "composer", "horovodrun"}
    | {"colossalai", "rankmem", "pip", "conda"}
)
"""Console scripts that start ranks (or install things) and are none."""

LAUNCHER_MODULES: Final = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "torch.distributed.launcher",
    "torchx",
    "accelerate.commands",
    "deepspeed.launcher",
    "composer.cli",
    "horovod.runner",
    "rankmem_cli",
    "rankmem_agent",
    "rankmem_ship",
    "pip",
)
"""The same, started with ``python -m``. ``rankmem_agent`` makes itself a candidate when it runs a script."""

_NUMBER_MAX: Final = 1 << 22
"""Of a rank on its host, an attempt, a process (Linux counts them up to there)."""
_OPTIONS_WITH_VALUE: Final = ("-W", "-X", "--check-hash-based-pycs")


class DetectedRank:
    """A rank's own numbers. A plain class: a dataclass would cost every dormant process its import."""

    __slots__ = (
        "attempt",
        "discrepancy",
        "is_child",
        "is_given",
        "key",
        "launch_pid",
        "local_rank",
        "local_world_size",
        "rank",
        "world_size",
    )

    def __init__(
        self,
        *,
        rank: int = 0,
        world_size: int = 1,
        local_rank: int | None = 0,
        local_world_size: int = 1,
        attempt: int = 0,
        key: str = PLAIN,
        launch_pid: int = 0,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        """0: not known."""
        self.discrepancy = ""
        """A launcher's number that cannot be, in a line; empty: none."""
        self.local_rank = local_rank
        """None: not known."""
        self.local_world_size = local_world_size
        self.attempt = attempt
        self.key = key
        """Distinguishes this worker from others of the same job and of other launches."""
        self.launch_pid = launch_pid or (os.getpid() if key == PLAIN else os.getppid())
        """See :data:`LAUNCH`."""
        self.is_child = False
        """Whether a process above this one has the same key."""
        self.is_given = False
        """Whether the user named this very process (``python -m rankmem_agent``): a rank in any case."""

    def mark(self) -> str:
        """The value of ``RANKMEM_CLAIMED`` for the children of this process."""
        return f"{os.getpid()} {self.key}"


def detect_rank(environment: Mapping[str, str], program: Sequence[str]) -> DetectedRank | None:
    """The rank that this process would be, or None for a launcher.

    Args:
        environment: ``os.environ``.
        program: ``sys.orig_argv``: the interpreter, its options, the script or module, arguments.
    """
    if is_launcher(program):
        return None
    pid, _, key = environment.get(MARK, "").partition(" ")
    found = ranked(environment) or _of_key(key) or DetectedRank(attempt=attempt_of(environment))
    found.discrepancy = _discrepancy_in(environment)
    if found.key == key:
        found.is_child = pid != str(os.getpid())  # else this process has replaced itself by exec
        found.launch_pid = _number(environment, LAUNCH, found.launch_pid)
    return found


def ranked(environment: Mapping[str, str]) -> DetectedRank | None:
    """The numbers that a launcher gave this process, or None without one."""
    for rank_name, size_name, local_name, local_size_name in RANK_VARIABLES:
        rank, size = environment.get(rank_name, ""), environment.get(size_name, "")
        if not rank.isdecimal() or not size.isdecimal() or _up_to(RANKS_MAX - 1, rank) is None:
            continue
        if rank_name == "SLURM_PROCID" and not _in_step(environment):
            continue
        attempt = attempt_of(environment)
        local_rank = _number(environment, local_name, 0)
        launch = environment.get("MASTER_PORT", ""), environment.get("TORCHELASTIC_RUN_ID", "")
        world_size = _up_to(RANKS_MAX, size) or 0
        return DetectedRank(
            rank=int(rank),
            world_size=world_size,
            local_rank=local_rank,
            local_world_size=_number(environment, local_size_name, world_size or 1),
            attempt=attempt,
            key="/".join((rank_name, rank, str(world_size), str(local_rank), str(attempt), *launch)),
        )
    return None


def _discrepancy_in(environment: Mapping[str, str]) -> str:
    """A number in the launchers' variables that cannot be, and is ignored."""
    for rank_name, size_name, *_ in RANK_VARIABLES:
        for name, most in ((rank_name, RANKS_MAX - 1), (size_name, RANKS_MAX)):
            text = environment.get(name, "")
            if text.isdecimal() and _up_to(most, text) is None:
                return f"{name}={text[:40]} cannot be (at most {most}): left out"
    return ""


def _of_key(key: str) -> DetectedRank | None:
    """The numbers that a process above was given, for one below it that has lost the variables."""
    name, *numbers = key.split("/")
    if name == PLAIN or not all(number.isdecimal() for number in numbers[:4]) or len(numbers) < 4:
        return None
    rank, size, local_rank, attempt = map(int, numbers[:4])
    return DetectedRank(rank=rank, world_size=size, local_rank=local_rank, attempt=attempt, key=key)


def attempt_of(environment: Mapping[str, str]) -> int:
    """Which start of the workers this is: torchrun's restart count, or how often Slurm requeued the job."""
    for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"):
        found = _up_to(RANKS_MAX - 1, environment.get(name, ""))
        if found is not None:
            return found
    return 0


def is_launcher(program: Sequence[str]) -> bool:
    """True for a program that starts ranks, and for an interpreter that runs no program of the user's."""
    arguments = iter(program[1:])
    for argument in arguments:
        if argument in _OPTIONS_WITH_VALUE:
            next(arguments, None)
        elif argument.startswith("-m") or (
            argument[:1] == "-" and argument[1:2] != "-" and argument[-1:] == "m"
        ):
            module = argument[2:] if argument.startswith("-m") else ""
            return _is_launcher_module(module or next(arguments, ""))
        elif argument == "-c" or not argument.startswith("-"):
            return os.path.basename(argument) in LAUNCHER_PROGRAMS
    return False


def _is_launcher_module(module: str) -> bool:
    return any(module == name or module.startswith(name + ".") for name in LAUNCHER_MODULES)


def _in_step(environment: Mapping[str, str]) -> bool:
    """As :func:`rankmem_agent.launchers.in_step`, without an import."""
    step = environment.get("SLURM_STEP_ID") or environment.get("SLURM_STEPID", "")
    return step.isdecimal() and int(step) < 0xFFFF_FF00


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    found = _up_to(_NUMBER_MAX, environment.get(name, ""))
    return default if found is None else found


def _up_to(most: int, text: str) -> int | None:
    """The number that the text is; None if it is none, or more than ``most``."""
    # Digits counted first: int() raises for thousands of them.
    number = int(text) if text.isdecimal() and len(text) <= len(str(most)) else None
    return number if number is not None and number <= most else None
