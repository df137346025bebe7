"""The agent's configuration in the trainer, read from the environment once.

Stage: trainer, when the agent attaches. Comes in: ``os.environ`` (names in ``docs/internals.md``).
Goes out: one frozen :class:`AgentConfig`. A value that cannot be used is reported with its name and value;
it switches the agent off, never the training. Standard library only. The few names that decide whether
this process attaches at all are read by :mod:`rankmem_agent.preload.rank_detection`, before this module is
worth its import; ``RANKMEM_TAP_CACHE`` and ``CXX`` by :mod:`rankmem_agent.tap.build`, which
``rankmem doctor`` uses too.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankmem_agent.privacy import Privacy
from rankmem_agent.session_ids import given_id
from rankmem_protos.credentials import Credentials
from rankmem_protos.errors import Code, RankmemError

AGGREGATOR_DEFAULT: Final = "127.0.0.1:7077"
SPOOL_BYTES_DEFAULT: Final = 512 * 2**20  # RANKMEM_SPOOL_BYTES: 8 M records while none is taken
SPOOL_BYTES_MIN: Final = 16 * 2**20  # three segments: one being written, one ready, one being shipped
DRAIN_S_DEFAULT: Final = 10.0  # RANKMEM_DRAIN_S: a job that has ended should end
DRAIN_S_MAX: Final = 3600.0  # a job that ends later than that was forgotten, not drained
DEVICES: Final = ("cpu", "cuda", "xpu", "npu")
DETAILS: Final = ("full", "operators", "events", "auto")
_STACKS: Final = ("full", "names", "off")
AUDITS_EVERY_DEFAULT: Final = 50  # RANKMEM_STEADY=auto: an audit costs what full detail costs, for a step
AUDITS_EVERY_MAX: Final = 1_000_000  # RANKMEM_STEADY: longer than nearly all trainings
PARALLEL_DIMENSIONS: Final = ("dp", "tp", "pp", "cp", "ep")  # columns of rank_info


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """The user's settings for the agent in a rank's process."""

    session_id: str | None
    """The job's id, 12 characters, made of any other text that is given; None: derived (see facts).
    ``RANKMEM_SESSION``."""
    name: str | None
    """The job's name; None: the script's. ``RANKMEM_NAME``."""
    aggregator: str
    """HOST:PORT that the host's shipper sends to. ``RANKMEM_AGGREGATOR``, default 127.0.0.1:7077."""
    credentials: Credentials
    """Files that the shipper shows it, never read in the trainer. ``RANKMEM_TLS_CA``, ``RANKMEM_TLS_CERT``,
    ``RANKMEM_TLS_KEY``, ``RANKMEM_TOKEN_FILE``, ``RANKMEM_INSECURE``."""
    spool_dir: Path | None
    """Root of the spools; None: chosen (see spool.folder). ``RANKMEM_SPOOL_DIR``."""
    spool_bytes: int
    """Budget of a rank's spool in bytes. ``RANKMEM_SPOOL_BYTES``, default 512 MiB."""
    temporary_dir: Path
    """Where spools go when memory has no room for them. ``TMPDIR``, default /tmp."""
    devices: frozenset[str] | None
    """Kinds of devices to record, as torch names them; None (auto): an accelerator once it is used, else cpu.
    ``RANKMEM_DEVICES``."""
    detail: str
    """How much is recorded, ``RANKMEM_DETAIL``: full (default); operators: events and operator calls, neither
    stacks nor modules; events: allocator events, samples and steps, no operator is observed; auto: full in
    some steps, events in the others, as the tap chooses."""
    stacks: bool
    """Gather Python stacks of calls that allocate. ``RANKMEM_STACKS`` full (default), names or off; only
    where detail is full or auto."""
    privacy: Privacy
    """How paths leave this host. ``RANKMEM_STACKS=names``: functions without files and lines;
    ``RANKMEM_PATH_MAP``, as /home/me=~,/scratch/x=X."""
    modules: bool
    """Name the module around each call and the weights. ``RANKMEM_MODULES`` on (default), hooks or off; as
    stacks."""
    module_hooks: bool
    """Through global forward hooks also where modules can be read from frames. ``RANKMEM_MODULES=hooks``."""
    audits_every: int
    """Calls are not observed in steps that are known from steps before, but for one of so many; 0: they are
    in each. ``RANKMEM_STEADY`` off (default), auto (50, without CUDA) or a number; only where detail is
    full, with stacks and modules."""
    steady_obstacle: str | None
    """Why ``RANKMEM_STEADY`` has no effect; None where it has, or is off."""
    is_steady_asked: bool
    """Also where CUDA is recorded, and audits as often as that: ``RANKMEM_STEADY`` is a number."""
    parallel: Mapping[str, int]
    """This rank's place in parallel dimensions. ``RANKMEM_PARALLEL``, as dp=1,tp=0; default none."""
    drain_s: float
    """Longest wait, in seconds, of a host's last rank for the last acknowledgement.
    ``RANKMEM_DRAIN_S``, default 10."""
    command_arguments: bool
    """Store the script's arguments, secrets masked. ``RANKMEM_COMMAND`` script (default) or full."""

    def not_recorded(self) -> tuple[str, ...]:
        """Which of operators, stacks and modules are not recorded in this process."""
        is_recorded = {
            "operators": self.detail != "events",
            "stacks": self.stacks,
            "modules": self.modules,
        }
        return tuple(name for name, recorded in is_recorded.items() if not recorded)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> AgentConfig:
        """The configuration that the environment gives.

        Args:
            environment: default ``os.environ``.

        Raises:
            RankmemError: INVALID, with the name and the value.
        """
        env = os.environ if environment is None else environment
        detail = _choice(env, "RANKMEM_DETAIL", DETAILS)
        stacks = _choice(env, "RANKMEM_STACKS", _STACKS)
        modules = _choice(env, "RANKMEM_MODULES", ("on", "hooks", "off"))
        is_full = detail in ("full", "auto")
        audits_every, is_number = _audits_every(env)
        is_steady = detail == "full" and stacks != "off" and modules == "on"
        return cls(
            session_id=_session(env),
            name=env.get("RANKMEM_NAME") or None,
            aggregator=_address(env),
            credentials=Credentials.from_environment(env),
            spool_dir=Path(env["RANKMEM_SPOOL_DIR"]).absolute() if env.get("RANKMEM_SPOOL_DIR") else None,
            spool_bytes=_integer(env, "RANKMEM_SPOOL_BYTES", SPOOL_BYTES_DEFAULT, SPOOL_BYTES_MIN),
            temporary_dir=Path(env.get("TMPDIR") or _temporary_dir()).absolute(),
            devices=_devices(env),
            detail=detail,
            stacks=is_full and stacks != "off",
            privacy=Privacy.from_text(env.get("RANKMEM_PATH_MAP") or "", files=stacks == "full"),
            modules=is_full and modules != "off",
            module_hooks=modules == "hooks",
            audits_every=audits_every if is_steady else 0,
            steady_obstacle=_STEADY_TAKES if audits_every and not is_steady else None,
            is_steady_asked=is_number,
            parallel=_parallel(env),
            drain_s=_seconds(env, "RANKMEM_DRAIN_S", DRAIN_S_DEFAULT, DRAIN_S_MAX),
            command_arguments=_choice(env, "RANKMEM_COMMAND", ("script", "full")) == "full",
        )

    @classmethod
    def of_what_is_usable(cls, environment: Mapping[str, str]) -> AgentConfig:
        """The same without the values that cannot be used: for a rank that can only report that it is not
        recorded.

        Of a user whose wishes about paths cannot be read no file leaves the host.
        """
        try:
            return cls.from_environment(environment)
        except RankmemError:
            given = {name: value for name, value in environment.items() if name not in _DOUBTFUL}
            usable = {name: value for name, value in environment.items() if _is_usable(name, value)}
            hidden = {} if "RANKMEM_PATH_MAP" in usable or "RANKMEM_PATH_MAP" not in environment else _HIDDEN
            return cls.from_environment(given | usable | hidden)


_STEADY_TAKES: Final = "it needs RANKMEM_DETAIL=full, RANKMEM_STACKS=full or names, and RANKMEM_MODULES=on"
_DOUBTFUL: Final = frozenset(
    {"RANKMEM_SPOOL_BYTES", "RANKMEM_DEVICES", "RANKMEM_STACKS", "RANKMEM_PATH_MAP", "RANKMEM_MODULES",
     "RANKMEM_PARALLEL", "RANKMEM_DRAIN_S", "RANKMEM_COMMAND", "RANKMEM_STEADY"}
)  # fmt: skip
"""Variables without which a session still finds its aggregator."""
_DIGITS_MAX: Final = 18
"""Of a coordinate: one with more is refused as one with these is, and int() raises from 4,300 on."""
_HIDDEN: Final = {"RANKMEM_STACKS": "names"}


def _temporary_dir() -> str:
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:  # none can be written to
        return "/tmp"


def _is_usable(name: str, value: str) -> bool:
    if name not in _DOUBTFUL:
        return False
    try:
        AgentConfig.from_environment({name: value})
    except RankmemError:
        return False
    return True


def _invalid(name: str, value: str, wanted: str) -> RankmemError:
    return RankmemError(Code.INVALID, f"{name}={value!r} cannot be used", f"{name}={wanted}")


def _session(env: Mapping[str, str]) -> str | None:
    value = env.get("RANKMEM_SESSION")
    return given_id(value) if value else None


def _address(env: Mapping[str, str]) -> str:
    value = env.get("RANKMEM_AGGREGATOR") or AGGREGATOR_DEFAULT
    host, _, port = value.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise _invalid("RANKMEM_AGGREGATOR", value, "HOST:PORT")
    return value


def _integer(env: Mapping[str, str], name: str, default: int, smallest: int) -> int:
    value = env.get(name)
    if not value:
        return default
    if not value.isdecimal() or int(value) < smallest:
        raise _invalid(name, value, f"a whole number of at least {smallest}")
    return int(value)


def _audits_every(env: Mapping[str, str]) -> tuple[int, bool]:
    """How often there is an audit, 0 for no steady steps, and whether a number was given."""
    value = env.get("RANKMEM_STEADY") or "off"
    if value in ("off", "auto"):
        return (AUDITS_EVERY_DEFAULT if value == "auto" else 0), False
    if not value.isdecimal() or len(value) > _DIGITS_MAX or not 2 <= int(value) <= AUDITS_EVERY_MAX:
        raise _invalid("RANKMEM_STEADY", value, f"off, auto or a number from 2 to {AUDITS_EVERY_MAX}")
    return int(value), True


def _seconds(env: Mapping[str, str], name: str, default: float, largest: float) -> float:
    value = env.get(name)
    if not value:
        return default
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= largest:
        raise _invalid(name, value, f"seconds from 0 to {largest:.0f}")
    return seconds


def _choice(env: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """The value, one of ``choices``; the first is the default."""
    value = env.get(name) or choices[0]
    if value not in choices:
        raise _invalid(name, value, " or ".join(choices))
    return value


def _devices(env: Mapping[str, str]) -> frozenset[str] | None:
    value = env.get("RANKMEM_DEVICES") or "auto"
    if value == "auto":
        return None
    devices = frozenset(part.strip() for part in value.split(","))
    if not devices <= set(DEVICES):
        raise _invalid("RANKMEM_DEVICES", value, "auto, or a comma list of cpu, cuda, xpu, npu")
    return devices


def _parallel(env: Mapping[str, str]) -> Mapping[str, int]:
    """The value dp=1,tp=0 as a mapping."""
    value = env.get("RANKMEM_PARALLEL") or ""
    dimensions: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in value.split(","))):
        name, _, number = part.partition("=")
        if name.strip() not in PARALLEL_DIMENSIONS or not number.strip().isdecimal():
            raise _invalid(
                "RANKMEM_PARALLEL", value, f"a comma list as dp=1,tp=0 of {', '.join(PARALLEL_DIMENSIONS)}"
            )
        dimensions[name.strip()] = int(number.strip()[:_DIGITS_MAX])
    return dimensions
