"""What the files beside an Ascend recording say of its rank: profiler_info_N.json, profiler_metadata.json.

Stage: readers; the process of ``rankmem import``. In: the files; out: rank, world size, place in the
parallel dimensions, torch_npu's version. ``rank_id`` is a number, or the number as text (torch_npu 2.7); -1
where the process is of no distributed job. ``distributed_args`` and ``parallel_group_info`` are added by
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
"""A process that is of no distributed job."""


def facts_of(files: Sequence[Path]) -> RankFacts:
    """What the files say, the first that says a thing; places and sizes only where they describe one rank.

    Raises:
        RankmemError: INVALID for a rank or a world size that none can have.
    """
    told = list(_told(files))
    ranks = [(file, info["rank_id"]) for file, info in told if _is_rank(info.get("rank_id"))]
    arguments = [
        (file, args) for file, info in told if isinstance(args := info.get("distributed_args"), dict)
    ]
    ranks += [(file, args["rank"]) for file, args in arguments if _is_rank(args.get("rank"))]
    rank = rank_number(*ranks[0]) if ranks else None
    worlds = [
        (file, said["world_size"]) for file, said in (*told, *arguments) if _is_said(said, "world_size")
    ]
    world_size = world_size_number(*worlds[0]) if worlds else None
    is_one = sum("rank_id" in info for _, info in told) <= 1
    sizes = sizes_of([args for _, args in arguments]) if is_one else {}
    groups = [group for _, info in told for group in _groups(info)] if is_one else []
    return RankFacts(
        rank=rank,
        world_size=world_size,
        torch_version=next((text for _, info in told if (text := _version(info)) is not None), None),
        parallel_sizes=sizes,
        coordinates=coordinates(groups, sizes),
    )


def _told(files: Sequence[Path]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The objects in the files; one that is no object, or broken, says nothing."""
    for file in files:
        try:
            if file.stat().st_size > INFO_BYTES_MAX:
                continue
            info = json.loads(file.read_text(encoding="utf-8"))
        except (ValueError, RecursionError, OSError):
            continue
        if isinstance(info, dict):
            yield file, info


def _is_rank(said: object) -> bool:
    return said is not None and str(said).strip() not in _NO_RANK


def _is_said(said: Mapping[str, Any], name: str) -> bool:
    return said.get(name) is not None


def _version(info: Mapping[str, Any]) -> str | None:
    version = info.get("torch_npu_version")
    return version if isinstance(version, str) else None


def _groups(info: Mapping[str, Any]) -> Iterator[ProcessGroup]:
    """``parallel_group_info``: a group's name, and this rank's place in it."""
    groups = info.get("parallel_group_info")
    for group in groups.values() if isinstance(groups, dict) else ():
        if isinstance(group, dict) and isinstance(group.get("group_name"), str):
            yield ProcessGroup(group["group_name"], group.get("group_rank"))
