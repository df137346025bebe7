"""Which recording is chosen, and what happens when CUDA comes up, with a torch that only looks like one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hook_recorder import Recorded
from rankmem_agent.config import AgentConfig
from rankmem_agent.hooks.guard import Guard
from rankmem_agent.preload import cuda, recording
from rankmem_agent.spool.layout import DeviceType, Kind, Missing
from rankmem_agent.tap.accelerators import NPU, ROCM, XPU, Accelerator
from rankmem_agent.tap.library import CpuSees, Stat, What
from rankmem_agent.tap.prebuilt import Build
from rankmem_protos.errors import Code, RankmemError
from spool_bytes import records_of


class FakeTap(Recorded):
    """A tap that keeps what is switched and attached."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__()
        self.did: list[object] = []
        self.sees = CpuSees.REGISTERED | CpuSees.DEFAULT | CpuSees.MAPPED
        self.python_found = 1

    def open(self, folder: Path, budget_bytes: int, *, is_provisional: bool) -> None:
        self.did.append("open")

    def stat(self, which: Stat) -> int:
        assert which is Stat.PYTHON_FOUND
        return self.python_found

    def attach_cpu(self) -> None:
        self.did.append("cpu")

    def cpu_sees(self) -> CpuSees:
        return self.sees

    def attach_calls(self) -> None:
        self.did.append("calls")

    def attach_cuda(self) -> None:
        self.did.append("cuda")

    def leave_cpu_for_cuda(self, facts: int) -> None:
        self.did.append(("cpu ends as", json.loads(self.strings[facts])["source"]))

    def publish(self, folder: Path) -> None:
        self.did.append("publish")

    def close(self) -> None:
        self.did.append("close")

    def enable(self, what: What, on: bool = True) -> None:
        self.did.append((what, on))


class FakeTorch:
    """As much of torch as is asked: its CUDA version and a queue of calls after initialisation."""

    __version__ = "2.13.0"

    def __init__(self, cuda_version: str | None, **built_for: str) -> None:
        self.queued: list[Callable[[], None]] = []
        self.version = SimpleNamespace(cuda=cuda_version, **built_for)
        self.cuda: Any = SimpleNamespace(_lazy_call=self.queued.append)
        self.xpu = self.npu = self.cuda


def _build(has_cuda: bool) -> Build:
    return Build(
        path=Path("tap.so"),
        has_cuda=has_cuda,
        compiled_s=0.0,
        is_prebuilt=False,
        cuda_missing="" if has_cuda else "no headers",
    )


def _open(monkeypatch: pytest.MonkeyPatch, torch: FakeTorch, **settings: str) -> FakeTap:
    monkeypatch.setattr(recording, "ensure_built", lambda: _build(True))
    monkeypatch.setattr(recording, "Tap", FakeTap)
    config: Any = AgentConfig.from_environment(settings)
    tap: Any = recording.choose(torch, config, Guard(0)).open(Path("spool"))
    assert isinstance(tap, FakeTap)
    return tap


def _sources(tap: FakeTap) -> list[str]:
    told = [tap.strings[fields["facts"]] for kind, fields in tap.records if kind is Kind.DEVICE]
    return [json.loads(each)["source"] for each in told]


def test_cpu_is_recorded_until_cuda_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = FakeTorch("13.0")
    tap = _open(monkeypatch, torch)
    assert tap.did == ["open", "cpu", "calls", (What.CALLS | What.STACKS | What.CPU_EVENTS, True)]
    torch.queued[0]()
    assert tap.did[4:] == [
        (What.CUDA_EVENTS, True), ("cpu ends as", "tap, until CUDA was used"), "cuda"
    ]  # fmt: skip
    assert _sources(tap) == ["tap"], "the tap writes the other one, at a device's first event"


def test_cpu_is_recorded_beside_cuda_when_both_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = FakeTorch("13.0")
    tap = _open(monkeypatch, torch, RANKMEM_DEVICES="cpu,cuda")
    torch.queued[0]()
    assert tap.did[4:] == [(What.CUDA_EVENTS, True), "cuda"]
    assert _sources(tap) == ["tap"]


def test_an_interpreter_whose_stacks_cannot_be_walked_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeTap, "stat", lambda tap, which: 0)
    tap = _open(monkeypatch, FakeTorch(None))
    (off,) = [fields for kind, fields in tap.records if kind is Kind.OFF]
    assert (off["missing"], tap.strings[off["what"]]) == (Missing.NAMES, "stacks")
    tap = _open(monkeypatch, FakeTorch(None), RANKMEM_STACKS="off")
    assert [kind for kind, _ in tap.records if kind is Kind.OFF] == [], "nobody wanted them"


def test_cuda_that_cannot_be_attached_is_a_gap_of_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = FakeTorch("13.0")
    tap = _open(monkeypatch, torch)
    monkeypatch.setattr(tap, "attach_cuda", lambda: False)
    torch.queued[0]()
    (off,) = [fields for kind, fields in tap.records if kind is Kind.OFF]
    assert (off["missing"], off["device_type"]) == (Missing.DEVICE, DeviceType.CUDA)
    assert tap.strings[off["detail"]] == "this CUDA allocator reports no events: only samples are recorded"


OTHERS = [(ROCM, {"hip": "7.0"}), (XPU, {"xpu": "2025.3"}), (NPU, {})]


def _other(accelerator: Accelerator, built_for: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    """A torch with this accelerator, whose allocator keeps a history."""
    torch = FakeTorch(None, **built_for)
    history = dict.fromkeys(("_record_memory_history", "_snapshot"), dict)
    torch.cuda.memory = SimpleNamespace(**history)
    names = [f"_{accelerator.name}_{name}" for name in ("memoryStats", "isHistoryEnabled")]
    torch._C = SimpleNamespace(**dict.fromkeys(names, dict))
    if accelerator.package:
        monkeypatch.setitem(sys.modules, accelerator.package, torch)
    return torch


def _with_node(accelerator: Accelerator, node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a device of this kind alone."""
    every = [
        replace(each, nodes=(str(node),) if each is accelerator else ()) for each in recording.WITHOUT_TAP
    ]
    monkeypatch.setattr(recording, "WITHOUT_TAP", every)


@pytest.mark.parametrize(("accelerator", "built_for"), OTHERS)
def test_an_accelerator_without_a_tap_is_recorded_through_its_history(
    accelerator: Accelerator, built_for: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    torch = _other(accelerator, built_for, monkeypatch)
    _with_node(accelerator, tmp_path, monkeypatch)
    chosen = recording.choose(torch, AgentConfig.from_environment({}), Guard(0))
    assert isinstance(chosen, cuda.SnapshotAttachment)
    assert chosen._accelerator.label == accelerator.label
    assert "cpu" in _open(monkeypatch, torch, RANKMEM_DEVICES="cpu").did


@pytest.mark.parametrize("devices", ["cpu,npu", "npu", "auto"])
def test_the_host_s_memory_is_a_gap_where_it_is_named_and_a_history_is_recorded(
    devices: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    torch = _other(NPU, {}, monkeypatch)
    _with_node(NPU, tmp_path, monkeypatch)
    config = AgentConfig.from_environment({"RANKMEM_DEVICES": devices})
    chosen = recording.choose(torch, config, Guard(0))
    (tmp_path / "spool").mkdir()
    chosen.open(tmp_path / "spool")
    chosen.close()
    off = [record for record in records_of(tmp_path / "spool").values() if record["kind"] == Kind.OFF]
    assert [each["device_type"] for each in off] == [DeviceType.CPU] * ("cpu" in devices)


@pytest.mark.parametrize(("accelerator", "built_for"), OTHERS)
@pytest.mark.parametrize("has_history", [True, False])
def test_memory_of_devices_that_are_not_followed_is_a_gap_from_their_first_use_on(
    accelerator: Accelerator,
    built_for: dict[str, str],
    has_history: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    torch = _other(accelerator, built_for, monkeypatch)
    if has_history:
        why = f"{accelerator.label} was not there yet as recording began"
        _with_node(accelerator, tmp_path / "none", monkeypatch)
    else:
        why = f"this torch keeps no history of {accelerator.label}'s allocator"
        del torch.cuda.memory._snapshot
        _with_node(accelerator, tmp_path, monkeypatch)
    tap = _open(monkeypatch, torch)
    assert [kind for kind, _ in tap.records if kind is Kind.OFF] == [], "none is used yet"
    torch.queued[-1]()
    (off,) = [fields for kind, fields in tap.records if kind is Kind.OFF]
    assert (off["missing"], off["device_type"]) == (Missing.DEVICE, accelerator.device_type)
    assert tap.strings[off["detail"]] == why


def test_an_accelerator_whose_package_comes_late_is_a_gap(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(recording, "ensure_built", lambda: _build(False))
    monkeypatch.setattr(recording, "Tap", FakeTap)
    torch = FakeTorch(None)
    chosen: Any = recording.choose(torch, AgentConfig.from_environment({}), Guard(0))
    tap = chosen.open(Path("spool"))
    _other(NPU, {}, monkeypatch)
    assert not torch.queued
    chosen.publish(Path("spool"))
    torch.queued[0]()
    (off,) = [fields for kind, fields in tap.records if kind is Kind.OFF]
    assert off["device_type"] == DeviceType.NPU
    chosen.close()
    assert len(torch.queued) == 1, "said once"


def test_only_what_is_named_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = FakeTorch("13.0")
    assert "cpu" not in _open(monkeypatch, torch, RANKMEM_DEVICES="cuda").did
    assert len(torch.queued) == 1
    assert "cpu" in _open(monkeypatch, torch, RANKMEM_DEVICES="cpu", RANKMEM_STACKS="off").did
    assert len(torch.queued) == 1


def test_a_forked_child_that_initialises_cuda_stays_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = FakeTorch("13.0")
    tap = _open(monkeypatch, torch)
    monkeypatch.setattr(cuda.os, "getpid", lambda: -1)
    torch.queued[0]()
    assert "cuda" not in tap.did


def test_a_cuda_allocator_that_cannot_be_recorded_is_said_and_the_host_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = FakeTorch("13.0")
    tap = _open(monkeypatch, torch)

    def refuse() -> None:
        raise RankmemError(Code.UNSUPPORTED, "no trackers here", "rankmem doctor")

    monkeypatch.setattr(tap, "attach_cuda", refuse)
    torch.queued[0]()  # torch would turn an exception into one of the user's
    assert capsys.readouterr().err == (
        "rankmem: rank 0: CUDA is not recorded: no trackers here (try: rankmem doctor)\n"
    )


def _no_compiler() -> Build:
    raise RankmemError(Code.UNSUPPORTED, "no C++ compiler found")


def test_without_a_compiler_cuda_is_recorded_through_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "ensure_built", _no_compiler)
    chosen = recording.choose(FakeTorch("13.0"), AgentConfig.from_environment({}), Guard(0))
    assert isinstance(chosen, cuda.SnapshotAttachment)


@pytest.mark.parametrize(("version", "devices"), [(None, "auto"), ("13.0", "cpu")])
def test_without_a_compiler_cpu_is_not_recorded(
    version: str | None, devices: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "ensure_built", _no_compiler)
    config = AgentConfig.from_environment({"RANKMEM_DEVICES": devices})
    with pytest.raises(RankmemError, match=r"no C\+\+ compiler"):
        recording.choose(FakeTorch(version), config, Guard(0))


@pytest.mark.parametrize("has_device", [True, False])
def test_without_cuda_s_headers_the_history_is_used_where_there_is_a_device(
    has_device: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(recording, "ensure_built", lambda: _build(False))
    monkeypatch.setattr(recording, "Tap", FakeTap)
    node = tmp_path if has_device else tmp_path / "none"
    monkeypatch.setattr(recording, "CUDA", replace(recording.CUDA, nodes=(str(node),)))
    chosen = recording.choose(FakeTorch("13.0"), AgentConfig.from_environment({}), Guard(0))
    assert isinstance(chosen, cuda.SnapshotAttachment if has_device else recording.NativeRecording)


def test_the_source_of_cpu_names_what_the_tap_does_not_see() -> None:
    def source(*seen: CpuSees) -> str:
        return cuda.cpu_facts(CpuSees(sum(seen)))["source"]

    every = (CpuSees.REGISTERED, CpuSees.DEFAULT, CpuSees.MAPPED)
    assert source(*every) == "tap"
    assert source(CpuSees.REGISTERED, CpuSees.DEFAULT) == "tap, without mapped files and shared memory"
    assert source(CpuSees.REGISTERED) == (
        "tap, without storages made directly (deep copies) and mapped files and shared memory"
    )
    assert cuda.cpu_facts(CpuSees(7), "until CUDA was used")["source"] == "tap, until CUDA was used"
