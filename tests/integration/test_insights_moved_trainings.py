"""Recordings of a training whose classes, files or lines have other names, and of code that resembles it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rankmem_aggregator import connect
from rankmem_aggregator.insights.answer import Answer

TRAINING = """
import torch
from torch import nn


class Mixer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Tower(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.layers = nn.ModuleList(Mixer(width) for _ in range(3))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x) + self.bias
        return x * 2


def main(batch=128):
    torch.manual_seed(0)
    model = Tower()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(12):
        loss = model(torch.randn(batch, 64)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


main()
"""
RENAMED = TRAINING.replace("Mixer", "FeedForward").replace("Tower", "Stack")
KEEPS = RENAMED.replace("torch.relu(self.up(x))", "torch.relu(self.up(x)).mul(2)")
OTHER = TRAINING.replace("Mixer", "Gated").replace(
    "x + self.down(torch.relu(self.up(x)))", "self.down(self.up(x).sigmoid() ** 2).sub(x)"
)
"""Another module in the place of the first."""

REWRITTEN = (
    TRAINING.replace("Mixer", "Gate")
    .replace("torch.relu(self.up(x))", "torch.relu(self.up(x).clone()).sigmoid()")
    .replace("return x + self", "return x - self")
)
"""Renamed, with operators that it had not and without some that it had."""

BLOCKS = KEEPS.replace("self.layers", "self.blocks")
"""Classes and the list have other names, and one holds more."""
KEYED = TRAINING.replace("(Mixer(width) for _ in range(3))", "({name: Mixer(width) for name in 'abc'})")
KEYED = KEYED.replace("ModuleList", "ModuleDict").replace("self.layers:", "self.layers.values():")

TWO = TRAINING.replace(
    "class Tower",
    """class Gate(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate = nn.Linear(width, width)

    def forward(self, x):
        return x * self.gate(x).sigmoid()


class Tower""",
).replace(
    "        self.bias",
    "        self.gates = nn.ModuleList(Gate(width) for _ in range(2))\n        self.bias",
)
TWO = TWO.replace(
    "        return x * 2", "        for gate in self.gates:\n            x = gate(x)\n        return x * 2"
)
SWAPPED = TWO.replace("Gate", "Other").replace("Mixer", "Gate").replace("Other", "Mixer")
"""Two classes have each other's names."""
LISTS = TWO.replace("self.gates", "self.others").replace("self.layers", "self.gates")
LISTS = LISTS.replace("self.others", "self.layers").replace(
    "ModuleList(Gate(width) for _ in range(2))", "Sequential(Gate(width), Gate(width))"
)
LISTS = LISTS.replace("for gate in self.layers:\n            x = gate(x)", "x = self.layers(x)")
"""Two lists have each other's names, and one runs its modules itself."""

Record = Callable[..., Path]


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    folder = tmp_path_factory.mktemp("moved")
    known: dict[tuple[str, str], Path] = {}

    def recorded(text: str, name: str = "train.py") -> Path:
        key = (text, name)
        if key not in known:
            own = folder / str(len(known))
            script = own / name
            script.parent.mkdir(parents=True)
            script.write_text(text)
            known[key] = own / "run.duckdb"
            command = [sys.executable, "-m", "rankmem_cli", "run", "--quiet", "--db", str(known[key]), "--"]
            subprocess.run([*command, sys.executable, str(script)], check=True, cwd=own)
        return known[key]

    return recorded


def diff(base: Path, head: Path) -> Answer:
    with connect(base) as before, connect(head) as after:
        return after.diff(before.session_id(None), base_in=before)


def fit(first: Path, other: Path, batch: int) -> Answer:
    with connect(first) as queries, connect(other) as with_other:
        return queries.fit(batch=[batch], others=[with_other])


def parts(answer: Answer) -> list[tuple[int, str, str | None]]:
    rows = [row for row in answer.rows.to_pylist() if row["what"] == "part"]
    return [(row["difference_bytes"], row["function"], row["moved_from"]) for row in rows]


def test_a_training_of_which_only_classes_were_renamed_is_the_same(record: Record) -> None:
    answer = diff(record(TRAINING), record(RENAMED))
    assert answer.verdict == "fine"
    assert parts(answer) == []
    assert sorted(answer.figures["moved"]) == ["class Mixer -> FeedForward", "class Tower -> Stack"]
    assert any("taken for the same, moved or renamed: class " in note for note in answer.notes)


def test_what_a_renamed_and_moved_class_holds_more_is_told_of_it_alone(record: Record) -> None:
    answer = diff(record(TRAINING), record(KEEPS, "models/stack.py"))
    assert answer.verdict == "finding"
    assert {"class Mixer -> FeedForward", "class Tower -> Stack", "train.py -> models/stack.py"} == set(
        answer.figures["moved"]
    )
    rows = [row for row in answer.rows.to_pylist() if row["what"] == "part"]
    assert {row["function"] for row in rows if row["difference_bytes"] > 0} == {"FeedForward.forward"}
    # Of the last layer backward has begun where the peak is now: what it makes there comes first after mul.
    assert {row["operator"] for row in rows} == {"aten::mul", "aten::threshold_backward"}
    assert {abs(row["difference_bytes"]) for row in rows} == {128 * 256 * 4}


def test_another_class_in_the_same_place_is_not_taken_for_a_renamed_one(record: Record) -> None:
    answer = diff(record(TRAINING), record(OTHER))
    assert not any(each.startswith("class ") for each in answer.figures["moved"])
    assert {"Mixer.forward", "Gated.forward"} <= {function for _, function, _ in parts(answer)}


def test_a_class_that_was_renamed_and_rewritten_is_said_to_be_unmatched_with_what_it_holds(
    record: Record,
) -> None:
    answer = diff(record(TRAINING), record(REWRITTEN, "models/gate.py"))
    assert not any(each.startswith("class ") for each in answer.figures["moved"])
    (told,) = answer.figures["replaced"]
    assert told.startswith("Mixer of base, Gate of head in 3 modules: ")
    assert any(told in note and "are not matched" in note for note in answer.notes)
    # What both make in one module with one operator is the same, though file and function have other names.
    assert not {"aten::relu", "aten::linear"} & {
        row["operator"] for row in answer.rows.to_pylist() if row["base_bytes"] == 0 or row["head_bytes"] == 0
    }
    assert diff(record(TRAINING), record(RENAMED)).figures["replaced"] == []


def test_what_a_class_in_a_renamed_list_holds_more_is_told_of_it_alone(record: Record) -> None:
    answer = diff(record(TRAINING), record(BLOCKS))
    classes = {"class Mixer -> FeedForward", "class Tower -> Stack"}
    assert set(answer.figures["moved"]) == {"module layers -> blocks (told without a class)", *classes}
    assert any("by the shapes of all their parameters and their code" in note for note in answer.notes)
    same = diff(record(TRAINING), record(KEEPS))
    assert [row[0] for row in parts(answer)] == [row[0] for row in parts(same)]
    rows = [row for row in answer.rows.to_pylist() if row["what"] == "part"]
    assert {row["operator"] for row in rows} == {"aten::mul", "aten::threshold_backward"}
    assert diff(record(BLOCKS), record(TRAINING)).verdict == "fine"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (SWAPPED, {"class Mixer -> Gate", "class Gate -> Mixer"}),
        (LISTS, {"module layers -> gates", "module gates -> layers"}),
    ],
)
def test_names_that_were_exchanged_are_no_change(text: str, told: set[str], record: Record) -> None:
    answer = diff(record(TWO), record(text))
    assert (answer.verdict, parts(answer)) == ("fine", [])
    assert set(answer.figures["moved"]) == told


def test_modules_that_could_be_each_other_are_one_part_and_said_to_be_unclear(record: Record) -> None:
    answer = diff(record(TRAINING), record(KEYED))
    assert parts(answer) == []
    names = "module layers.0, layers.1, layers.2 -> layers.a, layers.b, layers.c"
    assert answer.figures["moved"] == [f"{names} (it is not known which is which)"]


def test_sizes_recorded_from_other_places_and_under_other_names_are_predicted_alike(record: Record) -> None:
    larger = TRAINING.replace("batch=128", "batch=256")
    same = fit(record(TRAINING), record(larger), 512)
    moved = fit(record(TRAINING), record(RENAMED.replace("batch=128", "batch=256"), "src/models/net.py"), 512)
    assert (same.certainty, moved.certainty) == ("predicted", "predicted")
    assert moved.rows.equals(same.rows)
    assert moved.figures["num_matched"] == same.figures["num_matched"]
    assert set(moved.figures["moved"]) == {
        "class FeedForward -> Mixer", "class Stack -> Tower", "src/models/net.py -> train.py",
    }  # fmt: skip
    assert (same.figures["moved"], same.figures["is_edited"], moved.figures["is_edited"]) == (
        [],
        False,
        False,
    )
    real = fit(record(TRAINING.replace("batch=128", "batch=512")), record(TRAINING), 1024)
    held = {row["size"]: row["live_peak_bytes"] for row in real.rows.to_pylist()}[512]
    assert {row["size"]: row["live_peak_bytes"] for row in moved.rows.to_pylist()}[512] == held


def test_lines_with_other_numbers_are_told_apart_by_their_functions_and_the_answer_is_less_sure(
    record: Record,
) -> None:
    larger = TRAINING.replace("batch=128", "batch=256")
    same = fit(record(TRAINING), record(larger), 512)
    edited = fit(record(TRAINING), record("# A line more.\n" + larger, "net.py"), 512)
    assert edited.certainty == "suspected"
    assert edited.figures["is_edited"]
    assert edited.rows.equals(same.rows)
    assert any("lines have other numbers" in note for note in edited.notes)


def test_another_program_or_a_model_of_another_width_is_refused(record: Record) -> None:
    other = fit(record(TRAINING), record(OTHER.replace("batch=128", "batch=256"), "src/net.py"), 512)
    assert (other.verdict, "did not run the same program" in other.sentence) == ("cannot tell", True)
    wider = TRAINING.replace("batch=128", "batch=256").replace("4 * width", "8 * width")
    refused = fit(record(TRAINING), record(wider), 512)
    assert (refused.verdict, "no parameter follows the batch" in refused.sentence) == ("cannot tell", True)
