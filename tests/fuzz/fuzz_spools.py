"""Spools with anything wrong in them, through reader, pairing and the aggregator's checks.

Run as ``python tests/fuzz/fuzz_spools.py SECONDS SEED``; prints totals as one line of JSON. A spool is
delivered, or refused by an error of ours that names it; what its shipper sends is taken by the aggregator.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "support")]

import numpy as np

from fuzz.mutations import mutated, number
from own_memory import highest_bytes
from rankmem_agent.spool import layout
from rankmem_agent.spool.layout import Kind
from rankmem_aggregator.ingest.batch import Spool, declared_bytes, decode_batch
from rankmem_protos.errors import RankmemError
from rankmem_ship.send_buffer import SendBuffer
from rankmem_ship.spool_reader.segments import RECORD_DTYPE
from rankmem_ship.spool_upload import Attachments, SpoolUpload, UploadState
from spool_synthetic import Array, SyntheticSpool, make_records, training_records

CALLS = 60
STEPS_MAX = 2_000  # of one upload; more than it has batches, so a upload that goes round and round is seen
SMALL_FILES = ("control", "strings", "meta.json")
FIELDS = (
    "time_ns",
    "a",
    "b",
    "c",
    "d",
    "call_id",
    "thread",
    "e",
    "kind",
    "action",
    "device_type",
    "device_index",
)


class Fuzzer:
    """Makes spools and says what became of them."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng = random.Random(seed)
        self.totals: Counter[str] = Counter()
        self._folder = folder
        self._kind = ""
        template = SyntheticSpool(path=folder / "template", session_id="0TESTSESSION")
        self._good = training_records(template, CALLS, live_calls=20)
        self._strings = (template.path / "strings").read_bytes()

    def step(self) -> None:
        """One spool: delivered, or refused."""
        path = self._folder / "0TESTSESSION" / "0-0-1"
        self._make(path)
        self.totals["spools"] += 1
        try:
            self._ship(path)
        except (RankmemError, OSError) as error:
            if not str(error):
                raise
            self.totals["refused"] += 1
            if "-v" in sys.argv:
                print(f"refused: {error}"[:200], file=sys.stderr)
        shutil.rmtree(path.parent)

    def _make(self, path: Path) -> None:
        spool = SyntheticSpool(path=path, session_id="0TESTSESSION")
        (path / "strings").write_bytes(self._strings)
        records = np.concatenate([self._good, self._others()])
        kind = self._kind = self.rng.choice(("records", "files", "segment"))
        if kind == "records":
            self._hurt_records(records)
        torn = [self.rng.randrange(len(records))] if self.rng.random() < 0.2 else []
        spool.append(records, torn=torn)
        if self.rng.random() < 0.7:
            spool.end()
        if kind == "files":
            self._hurt_file(path / self.rng.choice(SMALL_FILES))
        elif kind == "segment":
            self._hurt_segment(path / layout.segment_name(0), len(records))

    def _others(self) -> Array:
        """Records of every kind, with strings and stacks that exist or do not."""
        rng = self.rng
        rows = [
            make_records(
                1,
                kind=int(rng.choice(list(Kind))),
                time_ns=time.monotonic_ns(),
                a=rng.randrange(50),
                b=rng.randrange(5000),
                c=rng.randrange(50),
                e=rng.randrange(260),
                call_id=rng.randrange(80),
                action=rng.randrange(10),
            )
            for _ in range(20)
        ]
        return np.concatenate(rows)

    def _hurt_records(self, records: Array) -> None:
        for _ in range(self.rng.choice((1, 3, 30))):
            name = self.rng.choice(FIELDS)
            width = RECORD_DTYPE[name].itemsize
            records[name][self.rng.randrange(len(records))] = number(self.rng, (0, 1, 2, 255)) % 256**width

    def _hurt_file(self, path: Path) -> None:
        if self.rng.random() < 0.1:
            path.unlink()
        else:
            path.write_bytes(mutated(path.read_bytes(), self.rng))

    def _hurt_segment(self, path: Path, count: int) -> None:
        used = layout.SEGMENT_HEADER_BYTES + count * layout.RECORD_BYTES
        with path.open("r+b") as file:
            head = file.read(used)
            file.seek(0)
            file.write(mutated(head, self.rng)[: layout.SEGMENT_BYTES])
            if self.rng.random() < 0.2:
                file.truncate(self.rng.randrange(used))

    def _ship(self, path: Path) -> None:
        upload = SpoolUpload(path, SendBuffer())
        meta = upload.meta
        spool = Spool(
            spool_id=meta.spool_id, session_id=meta.session_id, attempt=meta.attempt, rank=meta.rank
        )
        upload.opened(-1)
        for _ in range(STEPS_MAX):
            encoded = upload.next_batch(Attachments)
            if encoded is None:
                break
            try:
                declared_bytes(encoded.message)
                batch = decode_batch(encoded.message, spool)
            except RankmemError as error:
                if self._kind == "files":  # what meta.json says of the job is the user's
                    raise
                raise AssertionError(
                    f"the aggregator does not take what the shipper made: {error}"
                ) from error
            self.totals["rows"] += batch.num_rows
            upload.acknowledged(batch.sequence_last)
            upload.maintain(time.monotonic())
        else:
            raise AssertionError("the upload does not end")
        if upload.state is UploadState.DONE:
            self.totals["delivered"] += 1
        upload.close()


def main() -> None:
    """``fuzz_spools.py SECONDS SEED``."""
    seconds, seed = float(sys.argv[1]), int(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        fuzzer = Fuzzer(seed, Path(folder))
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            fuzzer.step()
    peak_mib = highest_bytes() >> 20
    print(json.dumps({**fuzzer.totals, "highest MiB": peak_mib}))


if __name__ == "__main__":
    main()
