"""Trains one of the workloads and writes what torch itself says of the memory, for the checks to compare.

Stage: the user's script; it knows nothing of rankmem. ``train.py WORKLOAD --device cuda --steps N --out
FILE`` writes a JSON object: the times of the steps, and on CUDA memory_stats() and the driver's figures, with
``--history`` also the allocator's own events, and the blocks and segments at the end.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from gpu.workloads import MIB, WORKLOADS, Options

HISTORY_ENTRIES = 4_000_000
SAMPLES_S = 2.5
"""At the end: long enough for two samples of what the process holds."""


def main() -> None:
    """Trains, and writes what torch says."""
    arguments = _arguments()
    torch.manual_seed(0)
    on_gpu = arguments.device == "cuda"
    if on_gpu:
        torch.cuda.init()
        if arguments.allowed_mib:
            allowed = arguments.allowed_mib * MIB / torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(allowed)
        if arguments.history:
            torch.cuda.memory._record_memory_history(context=None, max_entries=HISTORY_ENTRIES)
    if arguments.nccl:
        torch.distributed.init_process_group("nccl")
        torch.distributed.all_reduce(torch.ones(1 << 20, device="cuda"))
    told: dict[str, Any] = {"steps_s": [], "figures": []}
    try:
        step = WORKLOADS[arguments.workload](_options(arguments))
        for _ in range(arguments.steps):
            began = time.perf_counter()
            step()
            if on_gpu:
                torch.cuda.synchronize()
            told["steps_s"].append(time.perf_counter() - began)
            if arguments.figures:
                told["figures"].append(_figures())
    finally:
        if on_gpu:
            told |= _said_by_torch(arguments)
        told |= {"anonymous_bytes": anonymous_bytes(), "ended_s": time.time()}
        name = f"{arguments.out}.{os.environ['RANK']}" if "RANK" in os.environ else str(arguments.out)
        Path(name).write_text(json.dumps(told))
    if arguments.nccl:
        torch.distributed.destroy_process_group()


def _options(arguments: argparse.Namespace) -> Options:
    names = ("device", "batch", "bf16", "scale", "whole")
    return Options(**{name: getattr(arguments, name) for name in names})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--scale", type=int, default=8)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--whole", action="store_true", help="the whole model, also on a CPU")
    parser.add_argument("--allowed-mib", type=int, default=0, help="of the device's memory, at most")
    parser.add_argument("--history", action="store_true", help="record the allocator's own history")
    parser.add_argument("--figures", action="store_true", help="the allocator's figures after each step")
    parser.add_argument("--nccl", action="store_true", help="a process group of NCCL around it")
    parser.add_argument("--pickle", type=Path, help="write the snapshot there too")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def _figures() -> list[int]:
    """Allocations and frees so far, and requested, allocated and active bytes now."""
    stats = torch.cuda.memory_stats()
    counts = [stats[f"allocation.all.{name}"] for name in ("allocated", "freed")]
    return counts + [stats[f"{name}_bytes.all.current"] for name in ("requested", "allocated", "active")]


def _said_by_torch(arguments: argparse.Namespace) -> dict[str, Any]:
    gc.collect()
    torch.cuda.synchronize()
    time.sleep(SAMPLES_S)
    driver = driver_bytes(os.getpid())
    stats = dict(torch.cuda.memory_stats())
    told: dict[str, Any] = {
        "stats": stats,
        "max_allocated": torch.cuda.max_memory_allocated(),
        "driver": driver,
        "total_bytes": torch.cuda.get_device_properties(0).total_memory,
        "pinned": _pinned(),
    }
    if arguments.history:
        snapshot = torch.cuda.memory._snapshot()
        if arguments.pickle:
            arguments.pickle.write_bytes(pickle.dumps(slim(snapshot)))
        told |= history_of(snapshot)
    return told


def anonymous_bytes() -> int:
    """Resident bytes of this process that no file is behind."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def _pinned() -> dict[str, int]:
    """Statistics of pinned host memory, where this torch has them."""
    said = getattr(torch.cuda, "host_memory_stats", None) or getattr(
        torch.cuda.memory, "host_memory_stats", None
    )
    return {} if said is None else {name: int(value) for name, value in said().items()}


def history_of(snapshot: dict[str, Any]) -> dict[str, Any]:
    """A snapshot as plain lists: events of device 0, blocks in use and segments at the end."""
    events = []
    for entry in snapshot["device_traces"][0]:
        pool = entry.get("segment_pool_id") or entry.get("pool_id") or (0, 0)
        events.append([entry["action"], entry.get("addr", 0), entry["size"], entry["stream"], list(pool)])
    live = {}
    for segment in snapshot["segments"]:
        for block in segment["blocks"] if segment["device"] == 0 else ():
            if block["state"] != "inactive":
                live[str(block["address"])] = [block["requested_size"], block["size"], block["state"]]
    reserved = sum(each["total_size"] for each in snapshot["segments"] if each["device"] == 0)
    return {"events": events, "live": live, "segments_bytes": reserved}


def slim(snapshot: dict[str, Any]) -> dict[str, Any]:
    """Without stacks and times: what a replay reads, small enough to be kept as a test's data."""
    keep = ("action", "addr", "size", "stream", "pool_id", "segment_pool_id", "device_free")
    traces = [
        [{name: entry[name] for name in keep if name in entry} for entry in trace]
        for trace in snapshot["device_traces"][:1]
    ]
    segments = [
        {name: value for name, value in each.items() if name not in ("frames", "blocks")}
        | {
            "blocks": [
                {name: block[name] for name in ("address", "size", "requested_size", "state")}
                for block in each["blocks"]
            ]
        }
        for each in snapshot["segments"]
    ]
    return {
        "segments": segments,
        "device_traces": traces,
        "allocator_settings": snapshot.get("allocator_settings", {}),
    }


def driver_bytes(pid: int) -> dict[str, int | None]:
    """The driver's figures of device 0: not free, and held by this process; None where it does not say."""
    device = _asked("--query-gpu=memory.total,memory.free")
    own = [used for number, used in _asked("--query-compute-apps=pid,used_memory") if number == pid]
    return {
        "used": (device[0][0] - device[0][1]) * MIB if device else None,
        "own": own[0] * MIB if own else None,
    }


def _asked(query: str) -> list[list[int]]:
    """Rows of whole numbers that nvidia-smi prints; rows that have others are left out."""
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[part.strip() for part in line.split(",")] for line in done.stdout.splitlines()]
    return [[int(part) for part in row] for row in rows if all(part.isdigit() for part in row)]


if __name__ == "__main__":
    main()
