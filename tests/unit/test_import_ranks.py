"""The rank, world size and parallel place that a recording says, as number or text, or that cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ascend_files import a_story, write_csvs
from import_read import asked, imported
from rankmem_imports.formats import FORMATS
from rankmem_imports.recording import RankFacts
from rankmem_imports.search import search
from rankmem_protos.errors import Code, RankmemError


def ascend_facts(folder: Path, **files: object) -> RankFacts:
    """Of a folder with CSV files, and JSON files beside its output."""
    output = folder / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True, exist_ok=True)
    write_csvs(a_story(), output)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    [found] = search([str(folder)]).found
    [recording] = FORMATS["mindstudio"].open(found.files)
    return recording.facts


def trace_facts(path: Path, **info: object) -> RankFacts:
    path.write_text(json.dumps({"schemaVersion": 1, "distributedInfo": info, "traceEvents": []}))
    [recording] = FORMATS["kineto"].open([path])
    return recording.facts


@pytest.mark.parametrize("said", [2, "2", " 2 "])
def test_a_rank_that_profiler_info_says_as_text_is_that_rank(said: object, tmp_path: Path) -> None:
    assert ascend_facts(tmp_path, profiler_info_2={"rank_id": said}).rank == 2


@pytest.mark.parametrize("said", [-1, "-1", "", None])
def test_a_process_of_no_distributed_job_says_no_rank(said: object, tmp_path: Path) -> None:
    assert ascend_facts(tmp_path, profiler_info={"rank_id": said}).rank is None


@pytest.mark.parametrize("said", [-2, "-2", 2**31, str(2**31), "two", 1.5, True, [0]])
def test_a_rank_that_cannot_be_is_refused_with_its_file_and_value(said: object, tmp_path: Path) -> None:
    with pytest.raises(RankmemError, match="a rank is a number from 0 to") as caught:
        ascend_facts(tmp_path, profiler_info_0={"rank_id": said})
    assert caught.value.code is Code.INVALID
    assert "profiler_info_0.json" in caught.value.message
    with pytest.raises(RankmemError, match="a rank is a number from 0 to"):
        trace_facts(tmp_path / "trace.json", rank=said, world_size=2)


@pytest.mark.parametrize("said", [0, -1, 2**31, "many", False])
def test_a_world_size_that_cannot_be_is_refused(said: object, tmp_path: Path) -> None:
    with pytest.raises(RankmemError, match="has world size"):
        trace_facts(tmp_path / "trace.json", rank=0, world_size=said)
    with pytest.raises(RankmemError, match="has world size"):
        ascend_facts(tmp_path / "ascend", profiler_info_0={"rank_id": 0, "world_size": said})


def test_a_trace_without_a_rank_says_none(tmp_path: Path) -> None:
    facts = trace_facts(tmp_path / "trace.json", backend="nccl")
    assert (facts.rank, facts.world_size, facts.coordinates) == (None, None, {})
    assert trace_facts(tmp_path / "trace.json", rank="3", world_size="8").rank == 3


def test_world_size_and_parallel_sizes_are_read_from_profiler_metadata(tmp_path: Path) -> None:
    arguments = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 4, "data_parallel_size": 1}
    groups = {
        "group_name_1": {"group_name": "default_group", "group_rank": 5, "global_ranks": list(range(8))},
        "group_name_5": {"group_name": "dp_cp", "group_rank": 0, "global_ranks": [5]},
        "group_name_23": {"group_name": "tp", "group_rank": 1, "global_ranks": [4, 5]},
    }
    facts = ascend_facts(
        tmp_path,
        profiler_info_5={"rank_id": "5", "torch_npu_version": "2.7.1"},
        profiler_metadata={"distributed_args": arguments | {"world_size": 8}, "parallel_group_info": groups},
    )
    assert (facts.rank, facts.world_size, facts.torch_version) == (5, 8, "2.7.1")
    assert facts.parallel_sizes == {"tp": 2, "pp": 4, "dp": 1}
    assert facts.coordinates == {"tp": 1, "dp": 0}, "the place in pp is not said"


def test_the_groups_of_a_trace_give_the_places_of_its_rank(tmp_path: Path) -> None:
    groups: list[dict[str, Any]] = [
        {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1, 2, 3]},
        {"pg_name": "1", "pg_desc": "mesh_tp", "ranks": [2, 3]},
        {"pg_name": "2", "pg_desc": "DATA_PARALLEL_GROUP", "ranks": [1, 3]},
        {"pg_name": "3", "pg_desc": "mesh_pp", "ranks": [0, 1]},
    ]
    facts = trace_facts(tmp_path / "trace.json", rank=3, world_size=4, pg_config=groups)
    assert facts.coordinates == {"tp": 1, "dp": 1}


def test_ranks_and_places_that_files_say_are_in_the_database(tmp_path: Path) -> None:
    for rank in (0, 2):
        folder = tmp_path / "job" / f"host_{rank}_ascend_pt"
        output = folder / "ASCEND_PROFILER_OUTPUT"
        output.mkdir(parents=True)
        write_csvs(a_story(), output)
        metadata = {"parallel_group_info": {"a": {"group_name": "tp", "group_rank": rank // 2}}}
        (folder / "profiler_metadata.json").write_text(json.dumps(metadata))
        (folder / f"profiler_info_{rank}.json").write_text(
            json.dumps({"rank_id": str(rank), "world_size": 4})
        )
    database = tmp_path / "x.duckdb"
    assert imported(database, tmp_path / "job").failed == []
    assert asked(database, "SELECT rank, tp FROM rank_info ORDER BY rank") == [(0, 0), (2, 1)]
    assert asked(database, "SELECT world_size FROM session") == [(4,)]
