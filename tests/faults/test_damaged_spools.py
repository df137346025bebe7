"""Spools that are cut short, garbled, or of another version: what is readable is delivered, the rest named.

One job of many ranks, each with another damage, delivered by one ``rankmem ship``: a broken spool keeps none
of its neighbours, and says what is wrong with it.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from faults.ledger import Totals, Written, check
from faults.scene import Scene, opened
from main_job import RANKMEM, call
from rankmem_agent.spool import layout
from rankmem_agent.spool.folder import spools
from rankmem_agent.spool.layout import RECORDS_PER_SEGMENT, segment_name
from waiting import DEADLINE_S

FEW, MANY = 2_000, RECORDS_PER_SEGMENT + 2_000
"""Events: in one segment, and in two."""
NEWER = 99


def marks_zeroed(spool: Path) -> None:
    """Records 100 to 109 as a process leaves them that is killed while it writes: taken, never committed."""
    segment = bytearray((spool / segment_name(0)).read_bytes())
    for index in range(100, 110):
        end = layout.SEGMENT_HEADER_BYTES + (index + 1) * layout.RECORD_BYTES
        segment[end - 4 : end] = bytes(4)
    (spool / segment_name(0)).write_bytes(segment)


def segment_cut(spool: Path) -> None:
    with (spool / segment_name(0)).open("r+b") as file:
        file.truncate(layout.SEGMENT_HEADER_BYTES + 30_000 * layout.RECORD_BYTES)


def segment_garbled(spool: Path) -> None:
    overwrite(spool / segment_name(0), 0, b"rubbish!" * 512)


def segment_missing(spool: Path) -> None:
    (spool / segment_name(0)).unlink()


def strings_garbled(spool: Path) -> None:
    overwrite(spool / "strings", layout.STRINGS_HEADER_BYTES, bytes(range(256)))


def checkpoint_garbled(spool: Path) -> None:
    (spool / "checkpoint").write_bytes(b"PK\3\4 rubbish")


def version_set(version: int, *names: str) -> Callable[[Path], None]:
    def change(spool: Path) -> None:
        for name in names:
            if name == "meta.json":
                meta = json.loads((spool / name).read_text())
                (spool / name).write_text(json.dumps(meta | {"version": version}))
            else:
                overwrite(spool / name, 8, np.uint32(version).tobytes())

    return change


def control_garbled(spool: Path) -> None:
    overwrite(spool / "control", 0, b"rubbish!")


def meta_cut(spool: Path) -> None:
    (spool / "meta.json").write_text((spool / "meta.json").read_text()[:-30])


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


class Damage(NamedTuple):
    """What is done to a rank's spool, and what comes of it."""

    does: Callable[[Path], None]
    events: int
    missing: int = 0
    """At most so many events; a CLOCK record or two may be among them."""
    why: str = ""
    named: str = ""
    """Not delivered at all, and said to be so in these words."""


EVERYTHING = ("meta.json", "control", "strings", segment_name(0))
DAMAGES = {
    "none": Damage(lambda spool: None, FEW),
    "torn at the kill": Damage(marks_zeroed, FEW, missing=10, why="torn"),
    "a segment cut short": Damage(segment_cut, MANY, missing=RECORDS_PER_SEGMENT - 30_000, why="corrupt"),
    "a segment garbled": Damage(segment_garbled, MANY, missing=RECORDS_PER_SEGMENT, why="corrupt"),
    "a segment missing": Damage(segment_missing, MANY, missing=RECORDS_PER_SEGMENT, why="corrupt"),
    "strings garbled": Damage(strings_garbled, FEW),
    "a checkpoint garbled": Damage(checkpoint_garbled, FEW),
    "an older version": Damage(version_set(layout.FORMAT_VERSION - 1, *EVERYTHING), FEW),
    "a newer version": Damage(version_set(NEWER, "meta.json"), FEW, named=f"format version {NEWER}"),
    "a newer segment": Damage(version_set(NEWER, segment_name(0)), FEW, named=f"format version {NEWER}"),
    "control garbled": Damage(control_garbled, FEW, named="control has magic"),
    "meta.json cut short": Damage(meta_cut, FEW, named="meta.json is not the description of a spool"),
}


class Shipped(NamedTuple):
    scene: Scene
    done: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shipped]:
    """All ranks, damaged, and what ``rankmem ship`` made of them."""
    folder = tmp_path_factory.mktemp("damaged")
    with opened(folder) as scene:
        for rank, damage in enumerate(DAMAGES.values()):
            scene.start_rank(rank, "--events", str(damage.events), "--no-shipper")
        for rank in scene.ranks:
            rank.process.wait(DEADLINE_S)
        for rank, damage in enumerate(DAMAGES.values()):
            (spool,) = scene.session_dir().glob(f"0-{rank}-*")
            damage.does(spool)
        done = call((*RANKMEM, "ship", str(scene.session_dir()), "--db", str(scene.database)), folder)
        yield Shipped(scene, done)


def written(scene: Scene, name: str) -> Written:
    return scene.ranks[list(DAMAGES).index(name)].written()


@pytest.mark.parametrize("name", [name for name, damage in DAMAGES.items() if not damage.named])
def test_what_is_readable_is_stored_and_the_hole_is_told(shipped: Shipped, name: str) -> None:
    damage = DAMAGES[name]
    found: Totals = check(shipped.scene.database, [written(shipped.scene, name)], all_ranks=False)
    assert damage.missing - 5 <= found.explained <= damage.missing, shipped.done.stderr
    assert found.found == found.expected - found.explained
    assert found.reasons == ({damage.why} if damage.why else set())


@pytest.mark.parametrize("name", [name for name, damage in DAMAGES.items() if damage.named])
def test_what_cannot_be_read_is_named_and_stays_on_disk(shipped: Shipped, name: str) -> None:
    rank = list(DAMAGES).index(name)
    (spool,) = shipped.scene.session_dir().glob(f"0-{rank}-*")
    said = [line for line in shipped.done.stderr.splitlines() if f"/{spool.name}/" in line]
    assert any(DAMAGES[name].named in line for line in said), said


def test_the_command_fails_and_leaves_nothing_that_it_could_deliver(shipped: Shipped) -> None:
    named = [name for name, damage in DAMAGES.items() if damage.named]
    assert shipped.done.returncode == 1
    assert len(spools(shipped.scene.session_dir())) == len(named)
