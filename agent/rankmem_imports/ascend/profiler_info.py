"""Facts on a rank from the files beside an Ascend recording: profiler_info_N.json, profiler_metadata.json.

Stage: readers; the process of ``rankmem import``. In: the files; out: rank, world size, place in the
parallel dimensions, torch_npu's version. ``rank_id`` is a number, or the number as text (torch_npu 2.7); -1
for a process outside of a distributed job. ``distributed_args`` and ``parallel_group_info`` are added by
trainings through ``add_metadata_json`` (MindSpeed, Megatron, dynamic profiling).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rankmem_imports.parallel_groups import ProcessGroup, coordinates, sizes_of
from rankmem_imports.rank_numbers import rank_number, world_size_number
from rankmem_imports.recording import RankFacts

PATTERN: Final = "profiler_*.json"
INFO_BYTES_MAX: Final = 16 << 20
"""Of a profiler_info file: it is some kB; a larger one is not read."""

_NO_RANK: Final = ("-1", "")
"""A process outside of a distributed job."""


def facts_of(files: Sequence[Path]) -> RankFacts:
    """The facts in the files; the first to state one counts. Places and sizes only if they describe one rank.

    Raises:
        RankmemError: INVALID for a rank or a world size that none can have.
    """
    infos = list(_infos(files))
    ranks = [(file, info["rank_id"]) for file, info in infos if _is_rank(info.get("rank_id"))]
    arguments = [
        (file, args) for file, info in infos if isinstance(args := info.get("distributed_args"), dict)
    ]
    ranks += [(file, args["rank"]) for file, args in arguments if _is_rank(args.get("rank"))]
    rank = rank_number(*ranks[0]) if ranks else None
    worlds = [
        (file, facts["world_size"])
        for file, facts in (*infos, *arguments)
        if facts.get("world_size") is not None
    ]
    world_size = world_size_number(*worlds[0]) if worlds else None
    is_one = sum("rank_id" in info for _, info in infos) <= 1
    sizes = sizes_of([args for _, args in arguments]) if is_one else {}
    groups = [group for _, info in infos for group in _groups(info)] if is_one else []
    return RankFacts(
        rank=rank,
        world_size=world_size,
        torch_version=next((text for _, info in infos if (text := _version(info)) is not None), None),
        parallel_sizes=sizes,
        coordinates=coordinates(groups, sizes),
    )


def _infos(files: Sequence[Path]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The objects in the files; others and broken ones are ignored."""
    for file in files:
        try:
            if file.stat().st_size > INFO_BYTES_MAX:
                continue
            info = json.loads(file.read_text(encoding="utf-8"))
        except (ValueError, RecursionError, OSError):
            continue
        if isinstance(info, dict):
            yield file, info


def _is_rank(value: object) -> bool:
    return value is not None and str(value).strip() not in _NO_RANK


def _version(info: Mapping[str, Any]) -> str | None:
    version = info.get("torch_npu_version")
    return version if isinstance(version, str) else None


def _groups(info: Mapping[str, Any]) -> Iterator[ProcessGroup]:
    """``parallel_group_info``: a group's name, and this rank's place in it."""
    groups = info.get("parallel_group_info")
    for group in groups.values() if isinstance(groups, dict) else ():
        if isinstance(group, dict) and isinstance(group.get("group_name"), str):
            yield ProcessGroup(group["group_name"], group.get("group_rank"))
