"""Profiles that tests make up: traces of torch.profiler, exports of Nsight Systems, steps of TensorFlow."""

from __future__ import annotations

import gzip
import json
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from rankmem_protos.step_stats_pb2 import RunMetadata

BASE_NS = 1_700_000_000_000_000_000
"""Of traces."""
START_NS = 1_700_000_000_000_000_000
"""Of exports."""
MACHINE = 1 << 48
SCHEMA = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (
    globalVid INTEGER, devStateName TEXT, name TEXT, nameEnum INTEGER, value TEXT);
CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, totalMemory INTEGER, uuid TEXT);
CREATE TABLE NVTX_EVENTS (
    start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (
    start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (
    start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER,
    demangledName INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER,
    blockZ INTEGER);
CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS (
    start INTEGER, globalPid INTEGER, deviceId INTEGER, contextId INTEGER, address INTEGER, pc INTEGER,
    bytes INTEGER, memKind INTEGER, memoryOperationType INTEGER, name TEXT, correlationId INTEGER,
    streamId INTEGER);
"""
MARKER = "{'mod': 'torch.nn.functional', 'op': 'linear', 'args': [{'name': '', 'type': 'tensor'}]}"


def pid(process: int) -> int:
    """globalPid."""
    return MACHINE | process << 24


def tid(process: int, thread: int) -> int:
    """globalTid."""
    return pid(process) | thread


CPU = "/job:localhost/replica:0/task:0/device:CPU:0"
GPU = "/job:localhost/replica:0/task:0/device:GPU:0"
START_US = 1_700_000_000_000_000


def step(seed: int, nodes: int = 40) -> RunMetadata:
    """Nodes at random times that read what others put out, on two devices with three allocators."""
    rng = random.Random(seed)
    metadata = RunMetadata()
    names: list[str] = []
    for device, allocators in ((CPU, ["cpu"]), (GPU, ["GPU_0_bfc", "cuda_host_bfc"])):
        stats = metadata.step_stats.dev_stats.add(device=device)
        for number in range(nodes):
            name = f"scope/{device[-5:-2]}_{number}"
            inputs = [
                rng.choice(names) + rng.choice(["", "", "/_7"]) for _ in range(rng.randint(0, 3)) if names
            ]
            node = stats.node_stats.add(
                node_name=name,
                all_start_micros=START_US + rng.randint(0, 60),
                all_end_rel_micros=rng.randint(0, 8),
                timeline_label=f"{name} = Op{rng.randint(0, 3)}({', '.join(inputs)})",
                thread_id=rng.randint(0, 2),
            )
            for slot in range(rng.randint(0, 2)):
                described = node.output.add(slot=slot).tensor_description.allocation_description
                described.requested_bytes = rng.choice([0, 4, 64, 64, 1000])
                described.allocator_name = rng.choice(allocators)
                names.append(f"{name}:{slot}" if slot else name)
    return metadata


def op(
    name: str, start: float, duration: float, tid: int = 1, category: str = "cpu_op", **args: Any
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": tid,
        "ts": start,
        "dur": duration,
        "args": args,
    }


def memory(
    time: float, change: int, total: int, address: int, tid: int = 1, device: int = 1
) -> dict[str, Any]:
    args = {"Bytes": change, "Total Allocated": total, "Total Reserved": 4096, "Addr": address}
    args |= {"Device Type": device, "Device Id": 0 if device else -1}
    return {
        "ph": "i",
        "cat": "cpu_instant_event",
        "name": "[memory]",
        "pid": 1,
        "tid": tid,
        "ts": time,
        "args": args,
    }


def written(folder: Path, events: list[dict[str, Any]], **fields: Any) -> Path:
    path = folder / "trace.json"
    whole = {"schemaVersion": 1, "traceEvents": events, "baseTimeNanoseconds": BASE_NS} | fields
    path.write_text(json.dumps(whole), encoding="utf-8")
    return path


def export(folder: Path) -> Path:
    """Two processes: 10 allocates within ranges and runs a kernel, 11 only allocates."""
    path = folder / "report.sqlite"
    with closing(sqlite3.connect(path)) as database, database:
        database.executescript(SCHEMA)
        database.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?, '', '')", (START_NS,))
        database.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (0, '', 'Hostname', 1, 'node7')")
        database.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, 'A100', 1000000, 'uuid-0')")
        strings = [(1, "void gemm<float>(int)"), (2, "AddmmBackward, seq = 7"), (3, "layer:decoder")]
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", strings)
        ranges = [
            (100, 900, 59, None, tid(10, 10), 3),
            (200, 600, 59, MARKER, tid(10, 10), None),
            (300, 500, 59, "addmm, seq = 7", tid(10, 10), None),
            (100, 900, 59, None, tid(10, 12), 2),
            (100, None, 34, "a mark", tid(10, 10), None),
        ]
        database.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?)", ranges)
        calls = [
            (310, 320, tid(10, 10), 1),
            (330, 340, tid(10, 10), 2),
            (700, 710, tid(10, 10), 3),
            (400, 410, tid(10, 12), 4),
            (310, 320, tid(11, 11), 1),
        ]
        database.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?)", calls)
        kernels = [
            (350, 380, 0, 7, 2, pid(10), 1, 2, 1, 1, 64, 1, 1),
            (420, 450, 0, 7, 4, pid(10), 1, 2, 1, 1, 64, 1, 1),
        ]
        database.executemany(
            f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({', '.join('?' * 13)})", kernels
        )
        events = [
            (315, pid(10), 0, 1, 4096, 0, 1000, 2, 0, None, 1, None),
            (705, pid(10), 0, 1, 8192, 0, 500, 2, 0, None, 3, None),
            (706, pid(10), 0, 1, 4096, 0, 1000, 2, 1, None, None, None),
            (707, pid(10), 0, 1, 70000, 0, 64, 1, 0, None, None, None),
            (708, pid(10), 0, 1, 12288, 0, 300, 2, 1, None, None, None),
            (315, pid(11), 0, 1, 4096, 0, 30, 2, 0, None, 1, None),
        ]
        database.executemany(
            f"INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES ({', '.join('?' * 12)})", events
        )
    database.close()
    return path


def saved(folder: Path, metadata: RunMetadata, form: str) -> Path:
    """The step in one of the forms it is saved in."""
    path = folder / f"step.{form}"
    content = {
        "pb": metadata.SerializeToString(),
        "stats.pb": metadata.step_stats.SerializeToString(),
        "pbtxt": text_format.MessageToString(metadata).encode(),
        "stats.pbtxt": text_format.MessageToString(metadata.step_stats).encode(),
        "pb.gz": gzip.compress(metadata.SerializeToString()),
    }[form]
    path.write_bytes(content)
    return path


NVPROF_SCHEMA = """
CREATE TABLE StringTable (_id_ INTEGER PRIMARY KEY, value TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (
    _id_ INTEGER PRIMARY KEY, start INT, end INT, processId INT, threadId INT, correlationId INT);
CREATE TABLE CUPTI_ACTIVITY_KIND_DRIVER (
    _id_ INTEGER PRIMARY KEY, start INT, end INT, processId INT, threadId INT, correlationId INT);
CREATE TABLE CUPTI_ACTIVITY_KIND_MARKER (
    _id_ INTEGER PRIMARY KEY, timestamp INT, id INT, flags INT, objectId BLOB, name INT);
CREATE TABLE CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL (
    _id_ INTEGER PRIMARY KEY, correlationId INT, start INT, end INT, deviceId INT, streamId INT, name INT,
    gridX INT, gridY INT, gridZ INT, blockX INT, blockY INT, blockZ INT);
CREATE TABLE CUPTI_ACTIVITY_KIND_DEVICE (
    _id_ INTEGER PRIMARY KEY, id INT, globalMemorySize INT, uuid BLOB, name INT);
"""


def nvprof_profile(folder: Path) -> Path:
    """A kernel launched within a range, by nvprof."""
    path = folder / "profile.nvvp"
    thread = (10).to_bytes(4, "little") + (7).to_bytes(8, "little")
    with closing(sqlite3.connect(path)) as database, database:
        database.executescript(NVPROF_SCHEMA)
        strings = [(1, "void gemm<float>(int)"), (2, MARKER), (3, "Tesla V100")]
        database.executemany("INSERT INTO StringTable VALUES (?, ?)", strings)
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1, ?, ?, 10, 7, 1)", (
            START_NS + 310, START_NS + 320))  # fmt: skip
        for number, (time, flags) in enumerate([(200, 2), (600, 4)], start=1):
            database.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_MARKER VALUES (?, ?, 1, ?, ?, ?)",
                (number, START_NS + time, flags, thread, 2 if flags == 2 else 0),
            )
        numbers = "0, 7, 1, 2, 1, 1, 64, 1, 1"
        database.execute(
            f"INSERT INTO CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL VALUES (1, 1, ?, ?, {numbers})",
            (START_NS + 350, START_NS + 380),
        )
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_DEVICE VALUES (1, 0, 1000000, x'00', 3)")
    database.close()
    return path
