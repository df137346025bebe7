"""Facts about job, rank and host that never change: the content of a spool's ``meta.json``.

Stage: trainer, once, when the agent attaches. Comes in: the
detected rank, the configuration, /proc. Goes out: dictionaries whose keys are columns of ``session``,
``rank_info`` and ``host_info``. Nothing here asks the network (no DNS: a wrong resolver hangs for many
seconds) and nothing of the environment is stored but the launcher's numbers. Standard library only.

**The session's id.** ``RANKMEM_SESSION`` where it is set (``rankmem run`` sets it). Else every rank derives
it, without talking to another, from what all ranks of a launch share and no other launch does:

- a script without a launcher: this process.
- tasks of a launcher (``srun``, ``mpirun``): what it calls the job (:mod:`rankmem_agent.launchers`).
- one host: boot id, parent process and its start. Workers of one torchrun share their parent, over elastic
  restarts too. The time in the id is the parent's start.
- several hosts of a torchrun: the launcher's name of the job that torchrun is a task of, the Slurm job, or
  ``--rdzv-id`` where one was given (it should differ from job to job; where it comes back, the aggregator
  makes another attempt of the second job).
- several hosts and neither of them: nothing that the hosts share distinguishes two launches (the master's
  address and port come back with the next job), so each host is a session of its own.
  ``RANKMEM_SESSION`` makes them one.
"""

from __future__ import annotations

import hashlib
import os
import platform
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import rankmem_agent
from rankmem_agent.config import AgentConfig
from rankmem_agent.launchers import job_name
from rankmem_agent.preload.rank_detection import PLAIN, DetectedRank
from rankmem_agent.session_ids import id_of_hosts, id_of_text
from rankmem_agent.spool import layout
from rankmem_agent.spool.process_stat import process_start_ticks

UID_CHARS: Final = 16
_NS_A_SECOND: Final = 1_000_000_000
_PROC: Final = Path("/proc")
_ELSEWHERE: Final = (
    "192.0.2.1",
    9,
)  # TEST-NET-1, discard: only the route to it is looked up, nothing is sent


def session_id(environment: Mapping[str, str], detected: DetectedRank, configured: str | None = None) -> str:
    """The session's id: ``configured`` where given, else derived (see the module's head).

    The same on every rank of a launch and over its restarts.
    """
    if configured:
        return configured
    if detected.key == PLAIN:
        return id_of_process(os.getpid())
    is_on_several = _number(environment, "GROUP_WORLD_SIZE", "SLURM_NNODES") > 1
    if is_on_several or (job_name(environment) and not _is_torchrun(detected)):
        shared = id_of_hosts(environment)
        if shared is not None:
            return shared
    return id_of_process(os.getppid())


def launch(detected: DetectedRank, environment: Mapping[str, str] = os.environ) -> str:
    """Names what launched this rank: the same for all ranks of the launch that are on this host.

    As a rule that is a process: the launcher, or for a plain script the first of its name. Where each rank or
    each part of a job's hosts has a launcher process of its own (``srun rankmem run``, two nodes on one
    machine) it is what these share; :data:`rankmem_agent.spool.places.SHARED_LAUNCHES`.
    """
    port, run_id = _rendezvous(detected)
    if _is_torchrun(detected):
        if port and _number(environment, "GROUP_WORLD_SIZE") > 1:
            return f"torchrun {run_id} {port}"
    elif detected.key != PLAIN:
        if (name := job_name(environment)) is not None:
            return f"tasks {name}"
        numbered_by = detected.key.partition("/")[0]
        if port or numbered_by != "RANK":
            return f"numbered {numbered_by} {port}".rstrip()
    return launched_by(detected)


def launched_by(detected: DetectedRank) -> str:
    """Names the process that launched this rank, on this host."""
    kind = "script" if detected.key == PLAIN else "launcher"
    return f"{kind} {detected.launch_pid}-{process_start_ticks(detected.launch_pid)}"


def start_facts(detected: DetectedRank, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Distinguishes the launch of this rank from any other, also on another host or day."""
    name = launch(detected, environment)
    own = name if name.startswith("tasks ") else f"{host_uid()} {launched_by(detected)}"
    return {"launch": own}


def session_facts(
    config: AgentConfig, session: str, detected: DetectedRank, torch_version: str
) -> dict[str, object]:
    """The columns of ``session`` that a rank knows."""
    script = script_name()
    return {
        "session_id": session,
        "name": config.name or os.path.basename(script),
        "source": "live",
        "world_size": detected.world_size or None,
        "command": config.privacy.command(script, sys.argv[1:] if config.command_arguments else ()),
        "started_at_ns": time.time_ns(),
        "rankmem_version": rankmem_agent.__version__,
        "torch_version": torch_version,
        "python_version": platform.python_version(),
    }


def meta(config: AgentConfig, session: str, detected: DetectedRank, torch_version: str) -> dict[str, Any]:
    """The content of ``meta.json``, but for the rank's place, which comes with
    :class:`rankmem_agent.spool.places.Place`."""
    return {
        "version": layout.FORMAT_VERSION,
        "spool_id": "",
        "aggregator": config.aggregator,
        "credentials": config.credentials.facts(),
        "project_root": project_root(),
        "privacy": config.privacy.facts(),
        "start": start_facts(detected),
        "session": session_facts(config, session, detected, torch_version),
        "rank": rank_facts(session, detected),
        "host": host_facts(),
        "clock": {"monotonic_ns": time.monotonic_ns(), "realtime_ns": time.time_ns()},
    }


def rank_facts(session: str, detected: DetectedRank) -> dict[str, object]:
    """The columns of ``rank_info`` that the rank knows at its start, but for its place."""
    return {
        "session_id": session,
        "attempt": detected.attempt,
        "rank": detected.rank,
        "local_rank": detected.local_rank,
        "world_size": detected.world_size or None,
        "host_uid": host_uid(),
        "pid": os.getpid(),
        "process_started_ns": process_started_ns(os.getpid()),
        "started_at_ns": time.time_ns(),
    }


def host_facts() -> dict[str, object]:
    """The columns of ``host_info``. ``memory_bytes`` is the machine's, not a container's limit."""
    system = os.uname()
    return {
        "host_uid": host_uid(),
        "host_name": socket.gethostname(),
        "address": address(),
        "os": f"{system.sysname} {system.release}",
        "cpu_count": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "gpu_driver": gpu_driver(),
    }


def host_uid() -> str:
    """16 characters that name this machine until it boots again.

    The boot id parts machines that were cloned with their machine id; containers of one machine share both.
    """
    machine = _text(Path("/etc/machine-id")) or socket.gethostname()
    return hashlib.sha256(f"{machine} {boot_id()}".encode()).hexdigest()[:UID_CHARS]


def boot_id() -> str:
    """The kernel's id of this boot, or an empty text where /proc hides it."""
    return _text(_PROC / "sys/kernel/random/boot_id")


def address() -> str:
    """This host's address on its default route, or its name where it has none."""
    for family, elsewhere in ((socket.AF_INET, _ELSEWHERE), (socket.AF_INET6, ("2001:db8::1", 9))):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(elsewhere)
                return str(probe.getsockname()[0])
        except OSError:  # no route of this family
            continue
    return socket.gethostname()


def gpu_driver() -> str | None:
    """Version of NVIDIA's kernel driver, or None without one."""
    words = _text(_PROC / "driver/nvidia/version").partition("\n")[0].split()
    return next((word for word in words if word[:1].isdigit() and "." in word), None)


def script_name() -> str:
    """The program as it was called, without its arguments."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name not in ("__main__", "rankmem_agent.__main__"):
        return f"-m {spec.name.removesuffix('.__main__')}"
    return sys.argv[0] if sys.argv else ""


def project_root() -> str:
    """The folder that source paths are relative to: the nearest one up from here that is a project."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if any((folder / sign).exists() for sign in (".git", "pyproject.toml", "setup.py")):
            return str(folder)
    return str(here)


def process_started_ns(pid: int) -> int:
    """When a process started, in nanoseconds since 1970, to a clock tick (10 ms); the same in every rank.

    Source: the kernel's own record of the boot's time (``btime``), which only a clock step moves.
    """
    booted_s = next(
        (int(line.split()[1]) for line in _text(_PROC / "stat").splitlines() if line.startswith("btime ")), 0
    )
    ticks_a_second = os.sysconf("SC_CLK_TCK")
    return booted_s * _NS_A_SECOND + process_start_ticks(pid) * (_NS_A_SECOND // ticks_a_second)


def id_of_process(pid: int) -> str:
    """The id that a process gives to a session: from its start on this host."""
    shared = f"{boot_id()} {pid} {process_start_ticks(pid)}"
    return id_of_text(shared, process_started_ns(pid) // _NS_A_SECOND)


def _is_torchrun(detected: DetectedRank) -> bool:
    return detected.key.startswith("RANK/") and bool(_rendezvous(detected)[1])


def _rendezvous(detected: DetectedRank) -> tuple[str, str]:
    """MASTER_PORT and torchrun's run id at the interpreter's start: scripts set variables themselves."""
    parts = detected.key.split("/", 6)
    return (parts[5], parts[6]) if parts[0] == "RANK" and len(parts) == 7 else ("", "")


def _number(environment: Mapping[str, str], *names: str) -> int:
    """The first of the variables that is set, as a number; 1 without any."""
    text = next((environment[name] for name in names if environment.get(name)), "")
    return int(text) if text.isdecimal() else 1


def _text(path: Path) -> str:
    """A small file's text, or nothing where it cannot be read: containers hide parts of /proc."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
