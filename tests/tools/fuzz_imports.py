"""Mutated recordings into the readers: each is imported, or refused by an error that names it. Nothing else.

Each mutation changes a copy of a recording: cut short, bytes flipped, overwritten, taken out or doubled,
numbers and texts replaced by extreme ones; of a gzip file also what is inside. It is read as ``rankmem
import`` reads it, to its end, and what comes out is checked as the aggregator checks it. Run as a program
for as long as wanted:

    python tests/tools/fuzz_imports.py --mutations 1000 [--only KIND] [--seed N]

prints a line a recording with the counts, and the seed of every mutation that was neither imported nor
refused.
"""

from __future__ import annotations

import argparse
import gzip
import pickle
import random
import resource
import shutil
import signal
import tempfile
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from made_snapshots import dump, random_snapshot
from own_memory import highest_bytes
from rankmem_aggregator.ingest.batch import Spool, decode_batch
from rankmem_imports.planning import plan
from rankmem_imports.search import search
from rankmem_imports.staging import stage
from rankmem_protos.errors import RankmemError

RECORDINGS: Final = Path(__file__).resolve().parents[3] / "shared" / "recordings"
DEADLINE_S: Final = 60.0
"""For one mutated recording; the largest takes a few seconds whole."""
MEMORY_BYTES: Final = 12 << 30
"""Of address space, when run as a program: an allocation that a file asks for fails and is seen."""
SUFFIXES: Final = frozenset(
    {".pickle", ".pkl", ".gz", ".json", ".csv", ".db", ".sql", ".sqlite", ".pb", ".pbtxt"}
)

_EXTREME: Final = (
    b"-1", b"0", b"1e400", b"18446744073709551616", b"9223372036854775807", b"-9223372036854775808", b"NaN",
    b"null", b'""', b"[]", b"{}", b"[[", b"\\u0000", b'"' + b"A" * 5000 + b'"', b"\xff\xfe", b"0x7f",
    b"99999999999999999999",
)  # fmt: skip


_VALUES: Final[tuple[Any, ...]] = (
    None, True, -1, 0, 1, 2**31, 2**63, 2**64, -(2**70), 0.5, float("nan"), "", "x" * 70_000, "\ud800", b"\0",
    [], {}, [[]], [{}], {"a": 1}, (1, 2), "alloc", "free_completed", "segment_unmap",
)  # fmt: skip


@dataclass(slots=True)
class Outcome:
    """What became of the mutations of one recording."""

    imported: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """By the error's code."""
    unknown: int = 0
    """Of no kind any more, or no recording."""
    faults: list[str] = field(default_factory=list)
    """Neither: seed and what happened."""
    slowest_s: float = 0.0

    def line(self) -> str:
        """The counts."""
        refused = ", ".join(f"{count} {code}" for code, count in sorted(self.refused.items()))
        return (
            f"{self.imported} imported, {self.unknown} of no kind, refused: {refused or '0'}, "
            f"{len(self.faults)} faults, slowest {self.slowest_s:.1f} s"
        )


def fuzz(recording: Path, mutations: int, seed: int = 0) -> Outcome:
    """Mutates a recording (a file, or a folder with the files that stand together) so many times."""
    outcome = Outcome()
    with tempfile.TemporaryDirectory(prefix="rankmem-fuzz-") as folder:
        for number in range(mutations):
            chance = random.Random(f"{seed} {number} {recording.name}")
            where = Path(folder, str(number))
            _mutated_copy(recording, where, chance)
            began_s = time.monotonic()
            try:
                with _deadline():
                    _read(where, outcome)
            except Exception as exc:  # noqa: BLE001  any is a finding
                last = traceback.extract_tb(exc.__traceback__)[-1]
                place = f"{Path(last.filename).name}:{last.lineno}"
                outcome.faults.append(f"seed {seed}, number {number}: {type(exc).__name__}: {exc} at {place}")
            outcome.slowest_s = max(outcome.slowest_s, time.monotonic() - began_s)
            shutil.rmtree(where)
    return outcome


def recordings(folder: Path = RECORDINGS) -> list[Path]:
    """What is fuzzed: files, and folders of files that make one recording."""
    if not folder.is_dir():
        return []
    found = [
        path for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix in SUFFIXES and "ASCEND_PROFILER_OUTPUT" not in path.parts
    ]  # fmt: skip
    found = [path for path in found if search([str(path)]).found]
    return [*found, *sorted(folder.rglob("ASCEND_PROFILER_OUTPUT"))]


def made(folder: Path) -> list[Path]:
    """Small recordings of our own, where there are no others."""
    (folder / "made.raw.json").write_text(str([[10**18 + n, 2, n, n % 8] for n in range(300)]))
    times = list(range(10**15, 10**15 + 60))
    (folder / "made.json").write_text(str([times, [[0, *range(n, n + 8)] for n in range(60)]]))
    return [
        dump(folder / "made.pickle", random_snapshot(3, devices=2)),
        dump(folder / "made2.pickle", random_snapshot(4, events=80), protocol=2),
        folder / "made.raw.json",
        folder / "made.json",
    ]


def _read(where: Path, outcome: Outcome) -> None:
    looked = search([str(where)])
    planned = plan(looked.found)
    for path, error in looked.failed + planned.failed:
        _check(error, path)
        outcome.refused[error.code.value] += 1
    members = [(job, member) for job in planned.sessions for member in job.members]
    if not members and not looked.failed and not planned.failed:
        outcome.unknown += 1
    for job, member in members:
        try:
            staged = stage(
                member.recording, job.identity(member), job.spool_id(member), where / f"staged{member.rank}"
            )
        except RankmemError as error:
            _check(error, member.recording.source)
            outcome.refused[error.code.value] += 1
            continue
        spool = Spool(spool_id=staged.spool_id, session_id=job.session_id, attempt=0, rank=member.rank)
        try:
            for message in staged.messages(job.row_with([staged])):
                decode_batch(message, spool)
        except RankmemError as error:  # refused by the store; the import names the file before it
            outcome.refused[f"{error.code.value} by the store"] += 1
            continue
        outcome.imported += 1


def _check(error: RankmemError, path: Path) -> None:
    """An error has a hint or says enough, and names the file or one beside it."""
    assert path.name in error.message or path.parent.name in error.message, f"does not name {path}: {error}"


@contextmanager
def _deadline() -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError(f"more than {DEADLINE_S} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, DEADLINE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _mutated_copy(recording: Path, where: Path, chance: random.Random) -> None:
    if recording.is_dir():
        shutil.copytree(recording, where)
        files = sorted(path for path in where.iterdir() if path.suffix in SUFFIXES)
        _mutate_file(chance.choice(files), chance)
        return
    where.mkdir()
    _mutate_file(Path(shutil.copy(recording, where)), chance)


def _mutate_file(path: Path, chance: random.Random) -> None:
    path.chmod(0o600)
    data = path.read_bytes()
    if path.suffix in (".pickle", ".pkl") and chance.random() < 0.4:
        path.write_bytes(_mutated_values(data, chance))
    elif data[:2] == b"\x1f\x8b" and chance.random() < 0.7:
        path.write_bytes(zlib_gzip(_mutated(gzip.decompress(data), chance)))
    else:
        path.write_bytes(_mutated(data, chance))


def _mutated_values(data: bytes, chance: random.Random) -> bytes:
    """A whole pickle in which some values are others."""
    raw = pickle.loads(data)  # a recording that the restricted reader has read before
    for _ in range(chance.choice([1, 1, 3])):
        inner, key = raw, chance.choice(list(raw))
        while isinstance(inner[key], dict | list) and inner[key] and chance.random() < 0.9:
            inner = inner[key]
            key = chance.choice(list(inner)) if isinstance(inner, dict) else chance.randrange(len(inner))
        inner[key] = chance.choice(_VALUES)
    return pickle.dumps(raw)


def zlib_gzip(data: bytes) -> bytes:
    """As gzip, quickly."""
    packer = zlib.compressobj(1, wbits=31)
    return packer.compress(data) + packer.flush()


def _mutated(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    if chance.random() < 0.5 and changed:  # gently: what can still be read has to be right
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(changed))
            is_digit = 48 <= changed[at] < 58
            changed[at] = 48 + chance.randrange(10) if is_digit else changed[at] ^ 1 << chance.randrange(8)
        return bytes(changed)
    for _ in range(chance.choice([1, 1, 1, 2, 5, 20])):
        at, how = chance.randrange(len(changed) or 1), chance.randrange(7)
        length = min(chance.choice([1, 2, 8, 100, 4000]), len(changed) - at)
        if how == 0:
            del changed[at:]
        elif how == 1 and changed:
            changed[at] ^= 1 << chance.randrange(8)
        elif how == 2:
            changed[at : at + length] = chance.randbytes(length)
        elif how == 3:
            del changed[at : at + length]
        elif how == 4:
            changed[at:at] = changed[at : at + length]
        elif how == 5:
            changed[at : at + length] = bytes([chance.choice([0, 255])]) * length
        else:
            changed[at : at + chance.randrange(10)] = chance.choice(_EXTREME)
    return bytes(changed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzzes and prints; the exit code says whether there were faults."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--mutations", type=int, default=100, help="of each recording")
    parser.add_argument("--only", default="", help="recordings with this in their path")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    faults = total = 0
    with tempfile.TemporaryDirectory() as folder:
        for recording in [*recordings(), *made(Path(folder))]:
            name = str(
                recording.relative_to(RECORDINGS) if RECORDINGS in recording.parents else recording.name
            )
            if chosen.only in name:
                outcome = fuzz(recording, chosen.mutations, chosen.seed)
                faults, total = faults + len(outcome.faults), total + chosen.mutations
                print(f"{name}: {outcome.line()}", *outcome.faults[:10], sep="\n    ", flush=True)
    peak_mib = highest_bytes() >> 20
    print(f"{total} mutations, {faults} faults, at most {peak_mib} MiB")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
