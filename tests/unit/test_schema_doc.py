"""The reference page is made, never written."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankmem_aggregator.sql import view_names
from rankmem_aggregator.store.schema_doc import main, render
from rankmem_protos.tables import TABLES


def test_the_page_in_the_tree_is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "schema.md"
    assert main(["--check", "--path", str(page)]) == 0


def test_the_page_names_every_table_column_and_view() -> None:
    page = render()
    for table in TABLES.values():
        assert f"### {table.name}\n" in page
        assert all(f"| {column} |" in page for column in table.column_names())
    assert all(f"### {name}" in page for name in view_names())


def test_a_page_that_is_not_current_fails_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "schema.md"
    assert main(["--check", "--path", str(page)]) == 1
    assert "python -m rankmem_aggregator.store.schema_doc" in capsys.readouterr().err
    assert main(["--path", str(page)]) == 0
    assert main(["--check", "--path", str(page)]) == 0
