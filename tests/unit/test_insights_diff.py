"""Two sessions compared, over runs made by hand: verdicts, limits, parts, formats, what cannot be told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from typer.testing import CliRunner

from compared_jobs import BASE, HEAD, MIB, Run, store_runs
from constructed import clear, empty_database
from json_schema import faults
from rankmem_aggregator.insights.answer import Answer
from rankmem_aggregator.insights.compare import Compared, Judged
from rankmem_aggregator.insights.diff import NO_PARTS, SCHEMA
from rankmem_aggregator.insights.diff_limits import Limit, verdict_of
from rankmem_aggregator.insights.diff_text import markdown, moved, notes, sentence
from rankmem_aggregator.insights.json_schemas import schema_of
from rankmem_aggregator.insights.moved import Part, paired
from rankmem_aggregator.query import open as opening
from rankmem_cli.main import app
from rankmem_protos.credentials import Credentials
from rankmem_protos.errors import RankmemError

pytestmark = pytest.mark.slow

Ask = Callable[..., Answer]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("diff") / "job.duckdb"
    empty_database(str(path)).close()
    return path


@pytest.fixture
def ask(database: Path) -> Ask:
    def asked(of_head: dict[str, Any], of_base: dict[str, Any] | None = None, **options: Any) -> Answer:
        with duckdb.connect(str(database)) as connection:
            clear(connection)
            store_runs(connection, Run(**(of_base or {})), Run(**{"session_id": HEAD, "seed": 2, **of_head}))
        with opening.open_queries(database, Credentials()) as queries:
            answer = queries.diff("main", "pull-request", **options)
        assert answer.rows.schema.equals(SCHEMA, check_metadata=False)
        assert faults(schema_of("diff"), json.loads(json.dumps(answer.as_dict()))) == []
        return answer

    return asked


def verdicts(answer: Answer) -> dict[str, str | None]:
    """Of the figures that are medians."""
    others = ("part", "highest")
    return {row["what"]: row["verdict"] for row in answer.rows.to_pylist() if row["what"] not in others}


def highest(answer: Answer) -> dict[str, Any]:
    (row,) = (row for row in answer.rows.to_pylist() if row["what"] == "highest")
    return row


def parts(answer: Answer) -> list[tuple[int, str, str]]:
    return [
        (row["difference_bytes"], row["category"], f"{row['file']} {row['function']} {row['operator']}")
        for row in answer.rows.to_pylist()
        if row["what"] == "part"
    ]


def test_other_batches_and_numbers_of_steps_are_no_difference(ask: Ask) -> None:
    answer = ask({"steps": 30})
    assert (answer.verdict, answer.exit_code("suspected")) == ("fine", 0)
    assert answer.sentence == "nothing is worse at equal input: peak of a step 201.04 MiB in both"
    assert verdicts(answer) == {"peak": "same", "held": "same", "allocated": None}
    assert parts(answer) == []
    assert answer.figures["base"] == BASE


def test_a_peak_that_grew_is_found_to_the_byte_with_the_code_that_holds_it(ask: Ask) -> None:
    answer = ask({"extra": 5 * MIB, "batches": (3, 9)})
    assert (answer.verdict, answer.certainty, answer.exit_code("suspected")) == ("finding", "predicted", 1)
    assert verdicts(answer) == {"peak": "worse", "held": "same", "allocated": None}
    peak = answer.rows.to_pylist()[0]
    assert peak["difference_bytes"] == 5 * MIB
    assert peak["share"] == pytest.approx(5 * MIB / peak["base_bytes"])
    assert parts(answer) == [(5 * MIB, "activation", "model.py forward aten::gelu")]


def test_what_is_held_and_what_got_better(ask: Ask) -> None:
    worse = ask({"state": 80 * MIB})
    assert verdicts(worse) == {"peak": "worse", "held": "worse", "allocated": None}
    assert parts(worse) == [(16 * MIB, "optimizer_state", "train.py main aten::zeros_like")]
    better = ask({"state": 48 * MIB})
    assert (better.verdict, better.exit_code("suspected")) == ("fine", 0)
    assert verdicts(better) == {"peak": "better", "held": "better", "allocated": None}
    assert better.sentence.startswith("peak of a step is better at equal input: ")
    assert better.sentence.endswith("; nothing is worse")


@pytest.mark.parametrize("held", ["better", "same"])
def test_what_got_better_is_told_of_a_figure_with_that_verdict(held: str) -> None:
    falls = {"peak": (2 * MIB, "same"), "held": (5 * MIB, held), "allocated": (9 * MIB, None)}
    own = [
        Judged(
            what=what,
            rank=0,
            device="cpu",
            figure=Compared(base=20 * MIB, head=20 * MIB - fall, error=0),
            limit=MIB,
            verdict=verdict,
        )
        for what, (fall, verdict) in falls.items()
    ]
    figures = {"num_ranks": 1, "ranks_worse": [], "ranks_unclear": [], "ranks_better": [0]}
    assert sentence(own, figures) == (
        "held at a step's end is better at equal input: 20.00 MiB to 15.00 MiB, -5.00 MiB (-25.00%); nothing "
        "is worse"
        if held == "better"
        else "1 rank better at equal input, none worse"
    )


def test_a_larger_batch_that_is_the_same_at_equal_input_is_no_difference(ask: Ask) -> None:
    answer = ask({"batches": (8, 20)})
    assert answer.verdict == "fine"
    assert verdicts(answer)["peak"] == "same"


def test_limits_of_the_users_count_for_their_figures_alone(ask: Ask) -> None:
    answer = ask({"extra": 5 * MIB}, limits={"peak": Limit(share=0.05)})
    assert (answer.verdict, verdicts(answer)["peak"]) == ("fine", "same")
    answer = ask({"extra": 5 * MIB}, limits={"peak": Limit(size_bytes=5 * MIB - 1)})
    assert answer.verdict == "finding"
    answer = ask({"extra": 5 * MIB}, limits={"peak": Limit(share=0.5), "allocated": Limit(share=0.02)})
    assert verdicts(answer) == {"peak": "same", "held": "same", "allocated": "worse"}


@pytest.mark.parametrize(
    ("difference", "error", "limit", "verdict"),
    [
        (70 << 10, 0, None, "worse"),
        (60 << 10, 0, None, "same"),
        (-70 << 10, 0, None, "better"),
        (70 << 10, 30 << 10, None, "same"),
        (70 << 10, 30 << 10, Limit(size_bytes=1 << 16), "unclear"),
        (70 << 10, 20 << 10, Limit(size_bytes=1 << 16), "worse"),
        (70 << 10, 0, Limit(share=0.01), "worse"),
        (70 << 10, 0, Limit(share=0.1), "same"),
    ],
)
def test_a_difference_counts_beyond_the_limit_and_three_errors(
    difference: int, error: int, limit: Limit | None, verdict: str
) -> None:
    figure = Compared(base=float(MIB), head=float(MIB + difference), error=float(error))
    assert verdict_of(figure, limit, is_judged=True)[1] == verdict
    assert verdict_of(figure, None, is_judged=False)[1] is None


IDS = ("0", "int64", 8)
MASK = ("mask", "int64", 8)
FIXED = {"batches": (8, 8)}


def test_an_argument_of_one_side_alone_is_left_out_of_the_inputs_size(ask: Ask) -> None:
    """By bytes a batch of head with a mask would be compared with twice the batch of base."""
    with_mask = {"arguments": (IDS, MASK)}
    for head, base in ((with_mask, {}), ({}, with_mask)):
        answer = ask(head, base)
        assert (answer.verdict, answer.certainty, verdicts(answer)["peak"]) == ("fine", "predicted", "same")
        side = "head" if head else "base"
        assert answer.figures["left_out"] == [f"mask of {side}"]
        assert answer.notes[1] == (
            "inputs are compared by the elements of the arguments that both sides have, without mask of "
            f"{side}"
        )
    assert ask(with_mask | FIXED, FIXED).verdict == "fine", "the batch is the same"
    answer = ask(with_mask | {"extra": 5 * MIB})
    assert (answer.verdict, answer.rows.to_pylist()[0]["difference_bytes"]) == ("finding", 5 * MIB)
    assert answer.figures["head_input_elements"] == [6 * 512, 12 * 512]


def test_inputs_of_another_type_are_compared_by_their_elements(ask: Ask) -> None:
    halved = {"arguments": (("0", "int32", 4),)}
    for more in (FIXED, {"batches": (4, 16)}):
        answer = ask(halved | more, more)
        assert (answer.verdict, verdicts(answer)["peak"]) == ("fine", "same")
        assert answer.figures["retyped"] == ["0 (int64 in base, int32 in head)"]


def test_arguments_under_another_name_are_the_same_and_others_cannot_be_compared(ask: Ask) -> None:
    answer = ask({"arguments": (("ids", "int64", 8),)})
    assert (answer.verdict, answer.figures["renamed"]) == ("fine", ["0 -> ids"])
    assert "arguments taken for the same under another name: 0 -> ids" in answer.notes
    answer = ask({"arguments": (("pixels", "float32", 4),)})
    assert (answer.verdict, answer.exit_code("suspected")) == ("cannot tell", 2)
    assert answer.sentence == (
        "the model's arguments are others in head (pixels) than in base (0), so steps of equal input cannot "
        "be found"
    )


def test_where_both_sides_have_arguments_of_their_own_the_answer_is_only_suspected(ask: Ask) -> None:
    answer = ask({"arguments": (IDS, ("images", "float16", 2))}, {"arguments": (IDS, ("images_", "int8", 1))})
    assert (answer.verdict, answer.certainty) == ("fine", "suspected")


def test_a_longer_list_of_tensors_is_no_other_argument(ask: Ask) -> None:
    lists = [tuple((f"images.{place}", "float32", 4) for place in range(length)) for length in (2, 3)]
    answer = ask({"arguments": lists[1]}, {"arguments": lists[0]})
    assert (answer.figures["input"], answer.certainty) == ("input_bytes", "suspected")
    assert any("(images.2 of head): taken for more of the same" in note for note in answer.notes)


LIMIT = {"peak": Limit(share=0.02)}


def test_a_higher_step_among_others_is_named_and_judged_with_a_limit(ask: Ask) -> None:
    """The median of all steps does not see a validation in every fourth."""
    small, large = {"validation": MIB, "steps": 20}, {"validation": 300 * MIB, "steps": 24}
    answer = ask(large, small)
    assert (answer.verdict, highest(answer)["verdict"]) == ("fine", None)
    assert "; but the highest step went from 20" in answer.sentence
    assert answer.notes[0].startswith("the highest step of base is ")
    assert answer.notes[0].endswith("does not show it; no verdict without a limit, as --limit peak=2%")
    answer = ask(large, small, limits=LIMIT)
    assert (answer.verdict, verdicts(answer)["peak"]) == ("finding", "same")
    assert answer.sentence.startswith("highest step is worse at equal input: ")
    assert ask(small, large, limits=LIMIT).verdict == "fine"
    assert ask(large, {**large, "seed": 3}, limits=LIMIT).verdict == "fine"


def test_one_high_step_may_be_chance_if_nothing_tells_it_from_others(ask: Ask, database: Path) -> None:
    ask({"steps": 20}, {"steps": 20})
    for steps, verdict in (("10", "cannot tell"), ("4, 7, 8, 10, 13", "finding")):
        with duckdb.connect(str(database)) as connection:
            connection.execute(
                f"UPDATE step_bucket SET peak_bytes = peak_bytes + 500000000 WHERE session_id = ? "
                f"AND step IN ({steps})", [HEAD],
            )  # fmt: skip
        with opening.open_queries(database, Credentials()) as queries:
            answer = queries.diff(BASE, HEAD, limits=LIMIT)
        assert answer.verdict == verdict, answer.sentence
        if verdict == "cannot tell":
            assert answer.sentence.endswith("but in 1 of 18 steps, which may be chance: record more steps")
        with duckdb.connect(str(database)) as connection:
            connection.execute(
                f"UPDATE step_bucket SET peak_bytes = peak_bytes - 500000000 WHERE session_id = ? "
                f"AND step IN ({steps})", [HEAD],
            )  # fmt: skip


def test_a_highest_step_with_an_input_beyond_those_of_base_is_named_and_not_judged(ask: Ask) -> None:
    answer = ask({"batches": (8, 24), "steps": 20}, limits=LIMIT)
    assert (answer.verdict, highest(answer)["verdict"]) == ("fine", "same")
    assert answer.notes[0].endswith("input lies beyond those of base, so it is compared with none")


def test_noise_of_single_steps_is_no_difference(ask: Ask) -> None:
    answer = ask({"noise": 40 * MIB, "steps": 20}, {"noise": 40 * MIB})
    assert verdicts(answer)["peak"] == "same"


def test_the_rank_that_changed_most_for_the_worse_is_shown(ask: Ask, database: Path) -> None:
    with duckdb.connect(str(database)) as connection:
        clear(connection)
        head = Run(session_id=HEAD, seed=2, ranks=3)
        store_runs(connection, Run(ranks=3), head)
        connection.execute(
            "UPDATE step_bucket SET peak_bytes = peak_bytes + rank * 10 * 1024 * 1024 WHERE session_id = ?",
            [HEAD],
        )
    with opening.open_queries(database, Credentials()) as queries:
        answer = queries.diff(BASE, HEAD)
    assert answer.figures["ranks_worse"] == [1, 2]
    assert answer.sentence.startswith("rank 2: peak of a step is worse at equal input: ")
    assert answer.sentence.endswith("and so is 1 more rank")
    assert {row["rank"] for row in answer.rows.to_pylist()} == {2}


def test_lines_that_moved_are_no_difference(ask: Ask, database: Path) -> None:
    ask({})
    with duckdb.connect(str(database)) as connection:
        connection.execute("INSERT INTO stack_frame SELECT * REPLACE (stack_id + 10 AS stack_id, "
                           "line_number + 100 AS line_number) FROM stack_frame")  # fmt: skip
        connection.execute(
            "UPDATE packed.allocation_record SET stack_id = stack_id + 10 WHERE session_id = ?", [HEAD]
        )
    with opening.open_queries(database, Credentials()) as queries:
        assert parts(queries.diff(BASE, HEAD)) == []


def test_a_file_that_moved_is_the_same_code_and_the_answer_says_so(ask: Ask, database: Path) -> None:
    ask({"state": 80 * MIB})
    with duckdb.connect(str(database)) as connection:
        connection.execute(
            "INSERT INTO stack_frame SELECT * REPLACE (stack_id + 10 AS stack_id, line_number + 3 AS "
            "line_number, 'src/' || file_path AS file_path) FROM stack_frame"
        )
        connection.execute(
            "UPDATE packed.allocation_record SET stack_id = stack_id + 10 WHERE session_id = ?", [HEAD]
        )
    with opening.open_queries(database, Credentials()) as queries:
        answer = queries.diff(BASE, HEAD)
    assert parts(answer) == [(16 * MIB, "optimizer_state", "src/train.py main aten::zeros_like")]
    assert answer.rows.to_pylist()[-1]["moved_from"] == "train.py"
    assert answer.figures["moved"] == ["model.py -> src/model.py", "train.py -> src/train.py"]
    assert any("moved or renamed: model.py -> src/model.py, train.py" in note for note in answer.notes)
    assert "`optimizer_state · src/train.py main · before: train.py · aten::zeros_like`" in markdown(answer)


RELU = Part("activation", "a.py", "Net.forward", "aten::relu", "Net")


@pytest.mark.parametrize(
    ("base", "head", "told"),
    [
        ([RELU], [RELU], [(1, 1, None)]),
        ([RELU], [RELU._replace(file="b.py")], [(1, 1, "a.py")]),
        ([RELU], [RELU._replace(function="Model.forward")], [(1, 1, "Net.forward")]),
        ([RELU], [RELU._replace(module="Other")], [(1, 0, None), (0, 1, None)]),
        ([RELU], [RELU._replace(file="b.py", function="other")], [(1, 0, None), (0, 1, None)]),
        # A method of a class that was rewritten and moved is known by its name and its module.
        ([RELU], [RELU._replace(file="b.py", function="Other.forward")], [(1, 1, "a.py Net.forward")]),
        # The file's own name tells them apart where its folder has moved.
        ([RELU, RELU._replace(file="b.py")], [RELU._replace(file=f"src/{name}") for name in ("b.py", "a.py")],
         [(1, 1, "a.py"), (1, 1, "b.py")]),
        # One of two has moved, and one is gone: which is not known, so they are one part.
        ([RELU, RELU._replace(file="b.py")], [RELU._replace(file="c.py")], [(2, 1, "a.py, b.py")]),
        ([RELU, RELU._replace(function="f")], [RELU._replace(function="g")],
         [(1, 0, None), (1, 0, None), (0, 1, None)]),
        # What is on both sides stays, whatever else has moved.
        ([RELU, RELU._replace(file="b.py")], [RELU, RELU._replace(file="c.py")],
         [(1, 1, None), (1, 1, "b.py")]),
    ],
)  # fmt: skip
def test_names_are_paired_by_what_they_have_in_common(
    base: list[Part], head: list[Part], told: list[tuple[int, int, str | None]]
) -> None:
    found = paired(base, head)
    assert [(len(pair.base), len(pair.head), pair.moved_from()) for pair in found] == told
    assert sorted(part for pair in found for part in pair.base) == sorted(base)
    assert sorted(part for pair in found for part in pair.head) == sorted(head)
    unclear = [pair for pair in found if pair.is_ambiguous]
    assert [line.endswith("it is not known which is which)") for line in moved(unclear)] == [True] * len(
        unclear
    )


def test_without_shapes_the_batchs_blocks_count_and_the_answer_says_so(ask: Ask) -> None:
    answer = ask({"inputs": "bytes", "extra": 5 * MIB}, {"inputs": "bytes"})
    assert (answer.verdict, answer.figures["input"]) == ("finding", "batch_bytes")
    assert "shapes of inputs are not recorded" in answer.error
    assert answer.rows.to_pylist()[0]["difference_bytes"] == 5 * MIB


def test_steps_whose_input_is_not_recorded_are_left_out_and_the_answer_says_so(
    ask: Ask, database: Path
) -> None:
    ask({"extra": 5 * MIB})
    with duckdb.connect(str(database)) as connection:  # as steady steps of a model that is given views
        connection.execute("DELETE FROM step_input WHERE step % 3 != 0")
        connection.execute(
            "UPDATE packed.allocation_record SET category = 'unknown' WHERE category = 'input'"
        )
    with opening.open_queries(database, Credentials()) as queries:
        answer = queries.diff("main", "pull-request")
    assert (answer.verdict, answer.figures["input"]) == ("finding", "input_bytes")
    assert any("whose input is not recorded" in note for note in answer.notes)
    assert answer.rows.to_pylist()[0]["difference_bytes"] == 5 * MIB


@pytest.mark.parametrize(
    ("head", "base", "reason"),
    [
        ({"batches": (20, 30)}, {}, "the inputs of rank 0 do not overlap: "),
        ({"inputs": "nothing"}, {}, "what the model was given is not known for every step"),
        ({"steps": 4}, {}, "rank 0 of head (0SESSION000B) has 4 steps, at least 5 are needed"),
        ({"steps": 0}, {}, "head (0SESSION000B) has no steps"),
        ({}, {"complete": False}, "base (0SESSION000A) is incomplete"),
        ({"is_running": True}, {}, "rank 0 of head (0SESSION000B) has no end"),
        ({"ranks": 2}, {}, "cuda:0 of rank 1 is in head alone (1 device of all ranks in base, 2 in head)"),
        ({"device": "cuda:1"}, {}, "cuda:0 of rank 0 is in base alone"),
    ],
)
def test_it_cannot_tell(ask: Ask, head: dict[str, Any], base: dict[str, Any], reason: str) -> None:
    answer = ask(head, base)
    assert (answer.verdict, answer.exit_code("suspected"), answer.certainty) == ("cannot tell", 2, None)
    assert reason in answer.sentence
    assert answer.rows.num_rows == 0


def run(*arguments: str, **environment: str) -> Any:
    return CliRunner().invoke(app, ["diff", *arguments], env=environment)


def test_the_verb_compares_two_files_or_two_sessions_and_its_exit_code_says_the_verdict(
    ask: Ask, database: Path, tmp_path: Path
) -> None:
    ask({"extra": 5 * MIB})
    with empty_database(str(tmp_path / "other.duckdb")) as connection:
        store_runs(connection, Run(session_id=HEAD), Run())
        connection.execute(
            "UPDATE session SET started_at_ns = started_at_ns - 9 WHERE session_id = ?", [HEAD]
        )
    worse = run("main", "pull-request", RANKMEM_DB=str(database))
    assert worse.exit_code == 1, worse.output
    assert "peak of a step is worse at equal input" in worse.output
    assert run("pull-request", "main", "--db", str(database)).exit_code == 0
    same = run(str(tmp_path / "other.duckdb"), str(tmp_path / "other.duckdb"))
    assert (same.exit_code, "nothing is worse" in same.output) == (0, True)
    file = str(database)
    sessions = ("--base-session", "main", "--head-session", "pull-request")
    assert run(file, file, *sessions).exit_code == 1
    for variable in ("RANKMEM_DB", "RANKMEM_LAKE", "RANKMEM_AGGREGATOR"):
        named = run(file, file, *sessions, **{variable: "127.0.0.1:1"})
        assert "is worse at equal input" in named.output, (variable, named.exception)
    assert run(file, file, "--base-session", "main", "--head-session", "main").exit_code == 0
    assert isinstance(run("main", "pull-request", "--db", file, *sessions).exception, RankmemError)
    limit = ("--limit", "peak=10%", "--limit", "held=1GiB")
    assert run("main", "pull-request", "--db", str(database), *limit).exit_code == 0
    for wrong in ("peak", "reserved=2%", "peak=x%", "peak=-1%", "peak=2", "held=much"):
        refused = run("main", "pull-request", "--db", str(database), "--limit", wrong)
        assert refused.exit_code == 1, wrong
        assert isinstance(refused.exception, Exception)


def test_json_and_markdown(ask: Ask, database: Path) -> None:
    answer = ask({"extra": 5 * MIB})
    told = json.loads(run("main", "pull-request", "--db", str(database), "--format", "json").stdout)
    assert faults(schema_of("diff"), told) == []
    assert told["figures"]["ranks_worse"] == [0]
    text = run("main", "pull-request", "--db", str(database), "--format", "markdown").stdout
    assert text == markdown(answer)
    lines = text.splitlines()
    assert "| rankmem | base | head | change |" in lines
    assert any(line.startswith("| peak of a step | ") and line.endswith("⚠ |") for line in lines)
    assert "- +5.00 MiB `activation · model.py forward · aten::gelu · GPT.h`" in lines
    assert markdown(ask({"steps": 3})).startswith("**cannot tell:** rank 0 of head")


def test_parts_that_are_not_shown_are_counted_and_a_session_is_not_compared_with_itself_unnoticed() -> None:
    figures = {
        **NO_PARTS, "base": "a", "head": "b", "base_steps": 9, "head_steps": 9,
        "base_steps_unknown": 0, "head_steps_unknown": 0,
    }  # fmt: skip
    assert len(notes(figures)) == 1
    many = {"num_parts": 31, "num_parts_shown": 12, "parts_difference_bytes": -7 * MIB}
    assert notes(figures | many)[1] == "31 parts differ, by -7.00 MiB together; the largest are shown"
    assert notes(figures | {"head": "a"})[1].startswith("base and head are the same session")


def test_modules_of_one_side_are_in_a_note() -> None:
    figures = {
        **NO_PARTS,
        "base": "a",
        "head": "b",
        "base_steps": 9,
        "head_steps": 9,
        "base_steps_unknown": 0,
        "head_steps_unknown": 0,
        "moved": [],
    }
    told = notes(figures | {"unmatched": ["pool of base", *(f"head{each} of head" for each in range(6))]})
    assert told[-1].startswith("modules found on one side only: pool of base, head0 of head, ")
    assert told[-1].endswith(" and 1 more")
