"""Ids of sessions: made anew, or derived from what the hosts of a job share.

Stage: trainer, once, and ``rankmem run``. Comes in: a time, a text, an environment. Goes out: 12 characters
of Crockford's base32. Standard library only; no network.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Final

from rankmem_agent.launchers import in_step, job_name, task_of

ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base32: its order in ASCII is the order of the values."""
TIME_CHARS: Final = 7
"""Of seconds since 1970: good for a thousand years."""
RANDOM_CHARS: Final = 5
"""33 million values: enough to part the jobs that start in one second."""
SESSION_CHARS: Final = TIME_CHARS + RANDOM_CHARS
_BITS_A_CHAR: Final = 5
_LETTERS: Final = frozenset(ALPHABET + ALPHABET.upper())


def make_session_id(started_s: int | None = None) -> str:
    """A new session's id: ``started_s`` (seconds since 1970, default now), then randomness."""
    started_s = int(time.time()) if started_s is None else started_s
    return base32(started_s, TIME_CHARS) + base32(secrets.randbits(_BITS_A_CHAR * RANDOM_CHARS), RANDOM_CHARS)


def is_session_id(text: str) -> bool:
    """True for what an id looks like."""
    return len(text) == SESSION_CHARS and _LETTERS.issuperset(text)


def id_of_text(text: str, started_s: int = 0) -> str:
    """The id that a text stands for, the same on every host.

    Args:
        text: what the hosts of a job share and no other job does.
        started_s: the job's start where all hosts know it, in seconds since 1970; else the whole id but its
            first character, 0, is of the text: 25 bits would let two of some thousand jobs meet.
    """
    bits = int.from_bytes(hashlib.sha256(text.encode(errors="surrogateescape")).digest()[:8], "big")
    if started_s:
        return base32(started_s, TIME_CHARS) + base32(bits, RANDOM_CHARS)
    return ALPHABET[0] + base32(bits, SESSION_CHARS - 1)


def id_of_hosts(environment: Mapping[str, str]) -> str | None:
    """The id that all hosts of a launch derive alike; None where they share nothing that no other launch has.

    That is what a launcher of tasks calls the job (Slurm's job and step, Open MPI's namespace), the Slurm
    job, or torchrun's ``--rdzv-id`` where one was given. Slurm's start of the job is no part of it: a
    requeued job starts again, and is the same.
    """
    if (name := job_name(environment)) is not None:
        return id_of_text(name)
    if job := environment.get("SLURM_JOB_ID"):
        return id_of_text(f"slurm {job} {environment.get('SLURM_CLUSTER_NAME', '')}")
    run = environment.get("TORCHELASTIC_RUN_ID", "none")
    return None if run in ("", "none") else id_of_text(f"run {run}")


def id_of_launch(command: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """The id that every start of ``command`` for one job derives, on each host and as each task; None where
    there is one start, or where they share nothing.

    Args:
        command: as the user starts it on one host; torchrun's ``--nnodes`` and ``--rdzv-id`` are looked for.
        environment: the variables of Slurm, Open MPI, PMI and PMIx are looked for.
    """
    task = task_of(environment)
    is_one_of_several = task is not None and task.num_tasks > 1
    is_on_several = in_step(environment) and environment.get("SLURM_NNODES", "1") != "1"
    if (is_one_of_several or is_on_several) and (name := job_name(environment)) is not None:
        return id_of_text(name)
    if not on_several_hosts(command):
        return None
    return id_of_hosts({"TORCHELASTIC_RUN_ID": _option(command, "rdzv-id") or "none"})


def on_several_hosts(command: Sequence[str]) -> bool:
    """True where torchrun starts on more than one host."""
    return (_option(command, "nnodes") or "1").rpartition(":")[2] != "1"


def _option(command: Sequence[str], name: str) -> str | None:
    """The value of a launcher's option, which may be spelled with underscores and joined by ``=``."""
    spelled = (f"--{name}", f"--{name.replace('-', '_')}")
    for place, word in enumerate(command):
        option, joined, value = word.partition("=")
        if option in spelled:
            return value if joined else next(iter(command[place + 1 : place + 2]), None)
    return None


def given_id(text: str) -> str:
    """The id that a user means: an id as it is, any other text by :func:`id_of_text`."""
    return text if is_session_id(text) else id_of_text(f"given {text}")


def base32(value: int, chars: int) -> str:
    """The lowest ``chars`` digits of ``value``."""
    return "".join(ALPHABET[(value >> (_BITS_A_CHAR * place)) & 31] for place in reversed(range(chars)))
