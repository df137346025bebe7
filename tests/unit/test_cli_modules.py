"""The tree of modules: its order stays, those with most bytes come with all that is around them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from rankmem_cli.show.module_tree import as_tree, largest, no_deeper
from rankmem_cli.show.render import Format

TREE = [
    ("blocks", 0, 90),
    ("blocks.0", 1, 30),
    ("blocks.0.mlp", 2, 30),
    ("blocks.1", 1, 60),
    ("head", 0, 50),
    (None, None, 40),
]


def rows() -> pa.Table:
    return pa.Table.from_pylist([{"module": m, "depth": d, "total_bytes": b} for m, d, b in TREE])


def test_each_module_has_its_own_name_indented() -> None:
    assert as_tree(rows())["tree"].to_pylist() == [
        "blocks", "  0", "    mlp", "  1", "head", "(outside of modules)",
    ]  # fmt: skip


def test_a_model_that_is_one_module_has_a_name() -> None:
    root = pa.Table.from_pylist([{"module": "", "depth": 0, "total_bytes": 1}])
    assert as_tree(root)["tree"].to_pylist() == ["(root)"]


def test_the_largest_stay_in_the_order_of_the_tree(capsys: pytest.CaptureFixture[str]) -> None:
    kept = largest(rows(), None, output=Format.TABLE, table_rows=3)
    assert kept["module"].to_pylist() == ["blocks", "blocks.1", "head"]
    assert "the 3 largest of 6" in capsys.readouterr().err


def test_of_equals_the_one_around_the_other_stays() -> None:
    assert largest(rows(), 5, output=Format.TABLE, table_rows=1)["module"].to_pylist() == [
        "blocks", "blocks.0", "blocks.1", "head", None,
    ]  # fmt: skip


def test_json_has_all_modules_without_a_limit() -> None:
    assert largest(rows(), None, output=Format.JSON, table_rows=1).num_rows == 6
    assert largest(rows(), 0, output=Format.TABLE, table_rows=1).num_rows == 6
    assert largest(rows(), 2, output=Format.JSON, table_rows=1).num_rows == 2


def test_a_depth_cuts_the_tree_and_keeps_what_is_outside() -> None:
    assert no_deeper(rows(), 0)["module"].to_pylist() == ["blocks", "head", None]
    assert no_deeper(rows(), None).num_rows == 6
