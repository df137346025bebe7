"""The rules that the tests themselves keep."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TESTS = Path(__file__).resolve().parents[1]
PACKAGES = ("protos", "agent", "aggregator", "cli")
ROOTS = [TESTS / "support", TESTS / "tools", TESTS, *(TESTS.parent / name for name in PACKAGES)]
FILES = sorted(TESTS.rglob("test_*.py"))


@cache
def loaded_with(path: Path) -> frozenset[str]:
    """The modules that are imported with a file: at its top, not within functions."""
    return frozenset(
        name
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in _names(node)
    )


def _names(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]


@cache
def file_of(module: str) -> Path | None:
    """The file of a module of ours."""
    paths = (root / module.replace(".", "/") for root in ROOTS)
    files = (file for path in paths for file in (path.with_suffix(".py"), path / "__init__.py"))
    return next((file for file in files if file.is_file()), None)


def test_unit_tests_load_no_torch() -> None:
    """Nor do the modules that they import; what is imported within a test is seen by its conftest."""
    for path in sorted((TESTS / "unit").glob("test_*.py")):
        seen, left = set[str](), [path]
        while left:
            for name in loaded_with(left.pop()):
                if name not in seen and (file := file_of(name)):
                    left.append(file)
                seen.add(name)
        assert not any(name.partition(".")[0] == "torch" for name in seen), (
            f"{path.name} loads torch: move it to tests/component"
        )


@pytest.mark.parametrize("folder", ["component", "e2e", "faults", "fuzz", "integration", "unit"])
def test_tests_import_from_support_and_never_from_another_test_or_its_folder(folder: str) -> None:
    not_tests = {"bench", "gpu", "support", "tools"}
    others = {path.name for path in TESTS.iterdir() if path.is_dir()} - {folder} - not_tests
    for path in FILES:
        if path.is_relative_to(TESTS / folder):
            nodes = ast.walk(ast.parse(path.read_text("utf-8")))
            imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
            names = {name.partition(".")[0] for node in imports for name in _names(node)}
            foreign = {name for name in names if name.startswith("test_")} | (names & others)
            assert not foreign, f"{path.relative_to(TESTS)} imports {foreign}: move it to tests/support"


def test_how_often_a_random_test_is_repeated_is_set_by_the_profile() -> None:
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            is_literal = isinstance(node, ast.keyword) and node.arg == "max_examples"
            is_literal |= isinstance(node, ast.alias) and node.name == "settings"
            assert not is_literal, (
                f"{path.relative_to(TESTS)}: take `examples` from tests/support/repetitions.py"
            )


def called(node: ast.AST) -> set[str]:
    """The names of the functions and methods that are called in it."""
    calls = (each.func for each in ast.walk(node) if isinstance(each, ast.Call))
    return {call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "") for call in calls}


def has_check(node: ast.AST) -> bool:
    """Whether it has an assertion, or expects an exception or a warning."""
    return any(
        isinstance(each, ast.Assert)
        or (isinstance(each, ast.Attribute) and each.attr in ("raises", "warns", "fail"))
        for each in ast.walk(node)
    )


def checking(functions: list[ast.FunctionDef], known: set[str]) -> set[str]:
    """The names of those that check something: themselves, or by calling one that does."""
    names = {each.name for each in functions if has_check(each)}
    while more := {each.name for each in functions if called(each) & (names | known)} - names:
        names |= more
    return names


def functions_of(path: Path) -> list[ast.FunctionDef]:
    """Also those within classes and functions."""
    tree = ast.parse(path.read_text("utf-8"))
    return [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]


def test_every_test_asserts_something() -> None:
    """By itself, or by a function of its own file or by a check of tests/support."""
    shared = [each for path in TESTS.glob("support/*.py") for each in functions_of(path)]
    known = {name for name in checking(shared, set()) if name.startswith(("check", "until"))}
    for path in FILES:
        functions = functions_of(path)
        found = checking(functions, known)
        idle = [each.name for each in functions if each.name.startswith("test_") and each.name not in found]
        assert not idle, f"{path.relative_to(TESTS)}: {idle} assert nothing"
