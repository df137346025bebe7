"""The tasks that a scheduler's launcher started: which of how many this is, and of which job.

Stage: trainer, once, and ``rankmem run``. Comes in: an environment. Goes out: numbers, a name, or None.
Standard library only; no network. torchrun is not one of them: it is started as a task itself, and numbers
its workers on its own.

Each launcher starts its tasks with the same name of the job on every host:

- Open MPI: its namespace, and the key of its transports, which is random for each job.
- ``srun``: the job and the step. In a batch script, and in an interactive step, there is no task of many:
  what runs there is started once.
- PMI (MPICH, Intel MPI): ``PMI_JOBID`` where the launcher sets it; Hydra does not.
- any other PMIx server: its namespace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

STEPS_MAX: Final = 0xFFFF_FF00
"""Slurm gives larger numbers to what is no step of ``srun``'s: batch, interactive, external."""
_NUMBERED_BY: Final = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_NTASKS", ""),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One of the tasks of a launch."""

    rank: int
    num_tasks: int
    is_one_host: bool
    """Whether all tasks are known to run on this host."""


def task_of(environment: Mapping[str, str]) -> Task | None:
    """Which task this process is, or runs below; None where no launcher of tasks started it."""
    for rank_name, size_name, local_size_name in _NUMBERED_BY:
        if rank_name.startswith("SLURM") and not in_step(environment):
            continue
        rank, size = environment.get(rank_name, ""), environment.get(size_name, "")
        if rank.isdecimal() and size.isdecimal():
            is_one_host = environment.get(local_size_name) == size or environment.get("SLURM_NNODES") == "1"
            return Task(rank=int(rank), num_tasks=int(size), is_one_host=is_one_host)
    return None


def job_name(environment: Mapping[str, str]) -> str | None:
    """The launcher's name for the job of this task: the same for all its tasks, and for no other job's."""
    if environment.get("OMPI_COMM_WORLD_SIZE"):
        namespace = environment.get("PMIX_NAMESPACE") or environment.get("OMPI_MCA_ess_base_jobid")
        key = environment.get("OMPI_MCA_orte_precondition_transports", "")
        return f"ompi {namespace} {key}".rstrip() if namespace else None
    if in_step(environment):
        step = environment.get("SLURM_STEP_ID") or environment["SLURM_STEPID"]
        return f"slurm {environment['SLURM_JOB_ID']} {environment.get('SLURM_CLUSTER_NAME', '')} {step}"
    for kind, name in (("pmi", "PMI_JOBID"), ("pmix", "PMIX_NAMESPACE")):
        if environment.get(name):
            return f"{kind} {environment[name]}"
    return None


def in_step(environment: Mapping[str, str]) -> bool:
    """Whether ``srun`` started this process. A batch script has the job's number of tasks, and is none."""
    step = environment.get("SLURM_STEP_ID") or environment.get("SLURM_STEPID", "")
    return bool(environment.get("SLURM_JOB_ID")) and step.isdecimal() and int(step) < STEPS_MAX
