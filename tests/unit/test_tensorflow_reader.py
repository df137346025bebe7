"""Steps of TensorFlow that we make up: lives and maximums against a slow reading of the rule itself."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from import_read import read_alone
from made_profiles import CPU, saved, step
from rankmem_imports.formats import FORMATS
from rankmem_imports.probing import Probe
from rankmem_imports.recording import Closing
from rankmem_imports.tensorflow.lives import Lives
from rankmem_imports.tensorflow.reader import devices_of
from rankmem_imports.tensorflow.stats import nodes_of
from rankmem_protos.errors import RankmemError
from rankmem_protos.step_stats_pb2 import RunMetadata
from repetitions import seeds
from tensorflow_maximums import maximums


def slow_lives(metadata: RunMetadata) -> dict[str, tuple[str, int, int, int]]:
    """Allocator, bytes, first and last microsecond of each tensor, by asking every node about every
    tensor."""
    lives = {}
    nodes = [node for device in metadata.step_stats.dev_stats for node in device.node_stats]
    for node in nodes:
        for slot, output in enumerate(node.output):
            name = node.node_name if slot == 0 else f"{node.node_name}:{slot}"
            ends = [node.all_start_micros + node.all_end_rel_micros]
            ends += [
                reader.all_start_micros + reader.all_end_rel_micros - 1
                for reader in nodes
                for read in reader.timeline_label.split("(", 1)[1].rstrip(")").split(", ")
                if name in (read, read.rpartition("/_")[0])
            ]
            allocation = output.tensor_description.allocation_description
            lives[name] = (
                allocation.allocator_name,
                allocation.requested_bytes,
                node.all_start_micros,
                max(ends),
            )
    return lives


def slow_maximum(lives: dict[str, tuple[str, int, int, int]], allocator: str) -> tuple[int, int]:
    """Time and bytes of the highest total, summing all changes so far after each change."""
    own = [(start, size, name) for name, (who, size, start, _) in lives.items() if who == allocator]
    own += [(end, -size, name) for name, (who, size, _, end) in lives.items() if who == allocator]
    own.sort()
    best = (0, 0)
    for count in range(1, len(own) + 1):
        total = sum(size for _, size, _ in own[:count])
        if total > best[1]:
            best = (own[count - 1][0], total)
    return best


def collected(path: Path) -> Lives:
    lives = Lives()
    for device, node in nodes_of(path):
        lives.add(device, node)
    lives.end()
    return lives


def imported(path: Path) -> tuple[dict[str, list[dict[str, Any]]], Closing]:
    """All rows by table, and the closing."""
    return read_alone(FORMATS["tensorflow"], path)


@pytest.mark.parametrize("seed", seeds(12))
def test_lives_and_maximums_are_those_of_the_rule(tmp_path: Path, seed: int) -> None:
    metadata = step(seed)
    expected = slow_lives(metadata)
    lives = collected(saved(tmp_path, metadata, "pb"))
    assert {
        name: (t.allocator, t.size_bytes, t.created_us, t.ended_us) for name, t in lives.tensors.items()
    } == expected
    found = {allocator: maximum[:2] for allocator, maximum in maximums(lives.tensors).items()}
    assert found == {allocator: slow_maximum(expected, allocator) for allocator in found}


@pytest.mark.parametrize("form", ["pb", "stats.pb", "pbtxt", "stats.pbtxt", "pb.gz"])
def test_every_form_says_the_same(tmp_path: Path, form: str) -> None:
    metadata = step(1)
    path = saved(tmp_path, metadata, form)
    with (gzip.open if form == "pb.gz" else open)(path, "rb") as file:
        assert FORMATS["tensorflow"].recognises(Probe(path=path, head=file.read(4096)))
    assert collected(path).tensors == collected(saved(tmp_path, metadata, "pb")).tensors


@pytest.mark.parametrize("seed", seeds(4))
def test_the_peak_in_the_rows_is_the_maximum_with_its_tensors(tmp_path: Path, seed: int) -> None:
    path = saved(tmp_path, step(seed), "pb")
    expected = maximums(collected(path).tensors)
    tables, _ = imported(path)
    device_of = dict(zip(expected, devices_of(list(expected)), strict=True))
    for allocator, maximum in expected.items():
        rows = [row for row in tables["memory_event"] if row["device"] == device_of[allocator]]
        peak = max(rows, key=lambda row: (row["requested_bytes"], -row["seq"]))
        assert (peak["time_ns"], peak["requested_bytes"]) == (maximum.timestamp_us * 1000, maximum.num_bytes)
        alive = {
            block["annotation"]
            for block in tables["allocation_record"]
            if block["device"] == device_of[allocator]
            and block["allocation_id"] <= peak["seq"] < (block["freed_seq"] or 2**62)
            and block["size_bytes"]
        }
        sizes = {t.name: t.size_bytes for t in collected(path).tensors.values()}
        lasting = {t.name for t in collected(path).tensors.values() if t.ended_us > t.created_us}
        assert alive == {name for name in maximum.tensors if sizes[name]} & lasting


def test_rows_name_operator_node_allocator_and_no_address(tmp_path: Path) -> None:
    tables, closing = imported(saved(tmp_path, step(2), "pb"))
    assert {row["allocator"]: row["device"] for row in tables["device_info"]} == {
        "cpu": "cpu",
        "GPU_0_bfc": "cuda:0",
        "cuda_host_bfc": "pinned",
    }
    assert {row["address"] for row in tables["memory_event"]} == {None}
    assert {row["component"] for row in tables["allocation_record"]} == {"tensorflow"}
    assert all(row["operator"].startswith("Op") for row in tables["operator_call"])
    assert all(row["annotation"].startswith(row["module"]) for row in tables["allocation_record"])
    assert not closing.complete
    assert any("less than a microsecond" in remark for remark in closing.remarks)


def test_two_allocators_of_a_device_have_totals_of_their_own() -> None:
    assert devices_of(["cpu", "mklcpu", "GPU_1_bfc", "other"]) == ["cpu", "mklcpu", "cuda:1", "other"]


@pytest.mark.parametrize("form", ["pb", "pbtxt", "pb.gz"])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.95])
def test_a_step_that_breaks_off_is_refused(tmp_path: Path, form: str, share: float) -> None:
    path = saved(tmp_path, step(3), form)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(RankmemError, match=rf"step\.{form}"):
        imported(path)


def test_a_step_without_tensors_says_how_to_record_them(tmp_path: Path) -> None:
    metadata = RunMetadata()
    metadata.step_stats.dev_stats.add(device=CPU).node_stats.add(node_name="a", timeline_label="a = Op()")
    with pytest.raises(RankmemError, match="no tensor") as caught:
        imported(saved(tmp_path, metadata, "pb"))
    assert "FULL_TRACE" in caught.value.hint


def test_an_output_that_says_nothing_of_memory_is_no_block_of_nothing(tmp_path: Path) -> None:
    metadata = step(5)
    before, _ = imported(saved(tmp_path, metadata, "pb"))
    node = metadata.step_stats.dev_stats[0].node_stats.add(
        node_name="old", all_start_micros=metadata.step_stats.dev_stats[0].node_stats[0].all_start_micros
    )
    node.all_end_rel_micros = 5
    node.output.add(slot=0)
    tables, closing = imported(saved(tmp_path, metadata, "pb"))
    assert len(tables["memory_event"]) == len(before["memory_event"])
    assert {row["device"] for row in tables["device_info"]} == {"cpu", "cuda:0", "pinned"}
    assert any(remark.startswith("1 outputs have neither") for remark in closing.remarks)


def test_sizes_beyond_any_device_are_refused(tmp_path: Path) -> None:
    metadata = step(4)
    node = metadata.step_stats.dev_stats[0].node_stats.add(node_name="huge")
    node.output.add().tensor_description.allocation_description.requested_bytes = 2**62
    with pytest.raises(RankmemError, match=r"'huge'.* more than any device has"):
        imported(saved(tmp_path, metadata, "pb"))
