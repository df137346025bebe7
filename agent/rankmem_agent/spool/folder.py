"""Where spools live: the root's choice, a spool's folder and its ``meta.json``, the list of spools.

Stage: trainer (chooses and creates) and shipper (lists). Comes in: configuration and facts. Goes out: a
folder of mode 0700 that is ours, on a file system of this host. A network file system is refused: a mapped
page there can vanish under the writer (SIGBUS), and two hosts would meet in one lock file. Standard library
only.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from rankmem_agent.config import AgentConfig
from rankmem_agent.spool import launches, life
from rankmem_agent.spool.layout import CANDIDATE_NAME as CANDIDATE_NAME
from rankmem_agent.spool.layout import META_FORMAT, META_NAME
from rankmem_agent.spool.whole_file import write_whole
from rankmem_protos.errors import Code, RankmemError

SECRET_BYTES: Final = 16
CANDIDATE_PREFIX: Final = "candidate-"
SHARED_MEMORY: Final = Path("/dev/shm")
MARGIN_BYTES: Final = 256 * 2**20
"""Left free in shared memory: NCCL and DataLoader workers need it too, and die without it."""
STARTS_MAX: Final = 100  # spools of one process, which replaces itself by exec; more is a loop of its own
NETWORK_FILE_SYSTEMS: Final = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "lustre",
        "gpfs",
        "ceph",
        "beegfs",
        "glusterfs",
        "fuse.glusterfs",
    }
    | {"afs", "pvfs2", "wekafs", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.juicefs", "fuse.ceph"}
    | {"panfs", "orangefs", "ncpfs"}
)


def choose_root(config: AgentConfig, local_world_size: int) -> Path:
    """The root for the spools of this host: as configured, or memory with room, or the temporary folder.

    A folder there that another user has made is passed over.

    Args:
        local_world_size: ranks on this host; each may fill its budget.

    Returns:
        An absolute path; the folder is not created.

    Raises:
        RankmemError: INVALID, when it lies on a network file system.
    """
    if config.spool_dir is not None:
        root, setting = config.spool_dir, "RANKMEM_SPOOL_DIR"
    else:
        roots = _roots_with_room(config, local_world_size)
        # Where all are another's, the first is refused by name when it is to be used.
        root = next((root for root in roots if why_not_ours(root) is None), roots[0])
        setting = "TMPDIR" if root.parent == config.temporary_dir else "the home folder"
    kind = file_system(root)
    if kind in NETWORK_FILE_SYSTEMS:
        raise RankmemError(
            Code.INVALID,
            f"{setting} is on a network file system ({kind}): {root}",
            "RANKMEM_SPOOL_DIR=/a/local/folder",
        )
    return root


def default_roots(config: AgentConfig) -> tuple[Path, ...]:
    """Where spools are by default: in memory, and in the temporary folder; in the home
    folder where another user has taken these names, for every user may write there."""
    name = f"rankmem-{os.getuid()}"
    home = Path(os.path.expanduser("~")) / ".cache" / "rankmem" / "spool"
    return SHARED_MEMORY / name, config.temporary_dir / name, home


def session_dirs(session_id: str, config: AgentConfig) -> list[Path]:
    """The folders of a session on this host: one, or more where shared memory ran short between restarts, or
    where a rank that could not be recorded found no other place to report it.

    Args:
        session_id: the job.
        config: the agent's, as the job's environment gives it.
    """
    configured = () if config.spool_dir is None else (config.spool_dir,)
    ours = (root for root in default_roots(config) if why_not_ours(root) is None)
    return [root / session_id for root in dict.fromkeys((*configured, *ours)) if (root / session_id).is_dir()]


def session_dirs_here(session_id: str) -> list[Path]:
    """The same by this process's environment, for a job that it did not start."""
    places = {name: os.environ[name] for name in ("RANKMEM_SPOOL_DIR", "TMPDIR") if name in os.environ}
    return session_dirs(session_id, AgentConfig.from_environment(places))


def passed_over(config: AgentConfig, local_world_size: int) -> str | None:
    """Why the spools are not in their usual place, as a line: another user has taken it. None: they are."""
    if config.spool_dir is not None:
        return None
    roots = _roots_with_room(config, local_world_size)
    why = why_not_ours(roots[0])
    chosen = next((root for root in roots if why_not_ours(root) is None), None)
    if why is None or chosen is None:
        return None
    return f"{why}: recording into {chosen} (try: RANKMEM_SPOOL_DIR=/a/folder/of/yours)"


def why_not_ours(root: Path) -> str | None:
    """Why nothing of ours may be in a folder that may be there: see :func:`check_ours`. None: it may."""
    try:
        check_ours(root)
    except FileNotFoundError:
        return None
    except RankmemError as exc:
        return exc.message
    except OSError as exc:
        return f"{root} cannot be looked at: {exc.strerror}"
    return None


def _roots_with_room(config: AgentConfig, local_world_size: int) -> tuple[Path, ...]:
    wanted_bytes = config.spool_bytes * local_world_size + MARGIN_BYTES
    roots = default_roots(config)
    return roots if free_bytes(SHARED_MEMORY) >= wanted_bytes else roots[1:]


def create_spool(session_dir: Path, *, attempt: int, rank: int, pid: int | None = None) -> tuple[Path, int]:
    """A new, empty folder for the spool of a process, and how many it had before (see ``SpoolMeta.start``).

    Args:
        pid: the process; default: this one.

    Raises:
        RankmemError: DENIED when a folder on the way is somebody else's; CONFLICT when there are too many.
        OSError: it cannot be created.
    """
    return _create(session_dir, f"{attempt}-{rank}-{os.getpid() if pid is None else pid}")


def create_candidate(session_dir: Path) -> Path:
    """A new, empty folder for the log of this process while it is not known to be a rank; raises as above.

    What the same process left before it replaced itself by exec goes: it was no rank by then. A process in
    another container may have the same number; its folder stays.
    """
    name = f"{CANDIDATE_PREFIX}{os.getpid()}"
    own = launches.process(os.getpid())
    for left in [session_dir / name, *session_dir.glob(f"{name}-*")]:
        held, process = life.is_held(left), life.process_of(left)
        if (process == own and not held) or (not process and held is False):
            shutil.rmtree(left, ignore_errors=True)
    return _create(session_dir, name)[0]


def write_candidate(spool_dir: Path, facts: Mapping[str, object]) -> None:
    """Writes ``candidate.json``: whole or absent."""
    _write_facts(spool_dir / CANDIDATE_NAME, facts)


def candidates(session_dir: Path) -> list[Path]:
    """The folders of processes that are not known to be ranks, or died while they became one."""
    return sorted(
        folder
        for folder in _folders(session_dir)
        if (folder / CANDIDATE_NAME).exists() and not (folder / META_NAME).exists()
    )


def unfinished(session_dir: Path) -> list[Path]:
    """Folders that nothing describes yet: those still being made, or whose maker died then."""
    return [
        folder
        for folder in _folders(session_dir)
        if not (folder / CANDIDATE_NAME).exists() and not (folder / META_NAME).exists()
    ]


def _create(session_dir: Path, name: str) -> tuple[Path, int]:
    for again in range(STARTS_MAX):
        try:
            make_private(session_dir.parent)
            make_private(session_dir)
            os.chmod(session_dir, 0o700)  # made for us, perhaps; its parent may be a folder of the user's own
            return _create_in(session_dir, name)
        except FileNotFoundError:  # another run of the session removed the folder: it was empty just now
            if again == STARTS_MAX - 1:
                raise
    raise AssertionError


def _create_in(session_dir: Path, name: str) -> tuple[Path, int]:
    for start in range(STARTS_MAX):
        path = session_dir / (f"{name}-{start}" if start else name)
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            continue
        return path, start
    raise RankmemError(Code.CONFLICT, f"process {os.getpid()} has {STARTS_MAX} spools in {session_dir}")


def make_private(folder: Path) -> None:
    """Creates a folder of mode 0700, or checks that the one there is ours alone.

    /tmp and /dev/shm are open to everyone: another user who made the folder before us could read the job's
    memory or lead the writer elsewhere.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        check_ours(folder)


def check_ours(folder: Path) -> None:
    """Refuses a folder in which any user could put files, or swap those that are there.

    A group may write where its owner lets it (a umask of 002). A spool names where it is sent and which
    token file is shown there: another's is not believed.

    Raises:
        RankmemError: DENIED, with the folder.
    """
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise RankmemError(
            Code.DENIED, f"{folder} is not a folder of this user", "RANKMEM_SPOOL_DIR=/a/folder/of/yours"
        )
    mode = stat.S_IMODE(found.st_mode)
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise RankmemError(
            Code.DENIED, f"{folder} has mode {mode:04o}: others may write into it", f"chmod o-w {folder}"
        )


def write_meta(spool_dir: Path, facts: Mapping[str, object]) -> None:
    """Writes ``meta.json``: whole or absent. Its presence makes the folder a spool.

    The spool gets a secret of its own: who has the file can ship the spool, and no one else can send to an
    aggregator as this rank.
    """
    secret = os.urandom(SECRET_BYTES).hex()
    _write_facts(spool_dir / META_NAME, {"format": META_FORMAT, "secret": secret, **facts})


def _write_facts(path: Path, facts: Mapping[str, object]) -> None:
    write_whole(path, json.dumps(facts, ensure_ascii=False).encode("utf-8", "replace"))


def spools(session_dir: Path) -> list[Path]:
    """The spools of a session on this host, by name; those still being made are left out."""
    return sorted(folder for folder in _folders(session_dir) if (folder / META_NAME).exists())


def free_bytes(folder: Path) -> int:
    """Bytes that this user may still write to the file system of ``folder``; 0 if there is none."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def file_system(path: Path, mounts_file: Path = Path("/proc/self/mounts")) -> str:
    """The kind of file system that ``path`` is or would be on (``tmpfs``, ``nfs4``); empty if unknown.

    Source: the longest mount point above it in the kernel's list; a later mount hides an earlier one.
    """
    real = os.path.realpath(path)
    kind, longest = "", -1
    try:
        lines = mounts_file.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    for line in lines:
        _, mount_point, line_kind, *_ = line.split(" ")
        mount_point = mount_point.replace("\\040", " ").replace("\\011", "\t")
        if len(mount_point) >= longest and (real + "/").startswith(mount_point.rstrip("/") + "/"):
            kind, longest = line_kind, len(mount_point)
    return kind


def _folders(session_dir: Path) -> Iterator[Path]:
    try:
        with os.scandir(session_dir) as entries:
            yield from [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return
