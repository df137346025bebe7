"""The rules that the tests themselves keep."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
FILES = sorted(TESTS.rglob("test_*.py"))


def imported(tree: ast.Module) -> Iterator[str]:
    """The first name of every module that is imported, at the top or within a function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("folder", ["component", "e2e", "faults", "fuzz", "integration", "unit"])
def test_tests_import_from_support_and_never_from_another_test_or_its_folder(folder: str) -> None:
    others = {path.name for path in TESTS.iterdir() if path.is_dir()} - {folder, "bench", "support", "tools"}
    for path in FILES:
        if path.is_relative_to(TESTS / folder):
            names = set(imported(ast.parse(path.read_text("utf-8"))))
            foreign = {name for name in names if name.startswith("test_")} | (names & others)
            assert not foreign, f"{path.relative_to(TESTS)} imports {foreign}: move it to tests/support"
