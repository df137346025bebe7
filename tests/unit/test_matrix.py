"""Which releases of torch `make matrix` looks at, and how its page is written."""

from __future__ import annotations

from pathlib import Path

import pytest

import matrix


def test_the_newest_patch_of_each_minor_release_is_looked_at_a_cpu_build_before_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = (
        "torch (2.10.0)\nAvailable versions: 2.10.0, 2.9.1, 2.9.0, 2.8.0+cpu, 2.8.0, 2.7.0rc1, 2.6.0, 2.5.1\n"
    )
    monkeypatch.setattr(matrix, "_pip", lambda arguments: said)
    assert matrix.releases() == ["2.6.0", "2.8.0+cpu", "2.9.1", "2.10.0"]


def test_the_table_is_written_between_the_pages_marks_and_nothing_else_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "versions.md"
    old = ("| 2.15.0 | 3.11.2 | cpu | yes |", "| 2.8.0 | 3.11.2 | old |", "| 2.8.0 | 3.12.1 | cpu | yes |")
    page.write_text("\n".join(["before", matrix.BEGIN, *old, matrix.END, "after", ""]))
    monkeypatch.setattr(matrix, "PAGE", page)
    good = matrix.Result(
        release="2.8.0", python="3.11.2", cells=["cpu", "yes", "all", "9 of 9; 9 of 9", "yes", "stacks"]
    )
    bad = matrix.Result(
        release="2.9.1", python="3.11.2", cells=["cpu", "**no**"], differs=["it does not load"]
    )
    matrix.write([bad, good])
    text = page.read_text()
    assert text.startswith(f"before\n{matrix.BEGIN}\n| torch |")
    assert text.endswith(f"{matrix.END}\nafter\n")
    rows = [line for line in text.splitlines() if line.startswith("| 2.")]
    assert rows == [
        "| 2.8.0 | 3.11.2 | cpu | yes | all | 9 of 9; 9 of 9 | yes | stacks |",
        "| 2.8.0 | 3.12.1 | cpu | yes |",
        "| 2.9.1 | 3.11.2 | cpu | **no** |  |  |  |  |",
        "| 2.15.0 | 3.11.2 | cpu | yes |",
    ]
    assert "- torch 2.9.1: it does not load" in text


def test_the_page_in_the_docs_has_its_marks() -> None:
    page = matrix.PAGE.read_text()
    assert page.index(matrix.BEGIN) < page.index(matrix.END)
