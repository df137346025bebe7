"""The arrows of the house: who may import whom, and which foreign package lives in which folder."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "rankmem_protos": ROOT / "protos",
    "rankmem_agent": ROOT / "agent",
    "rankmem_aggregator": ROOT / "aggregator",
    "rankmem_cli": ROOT / "cli",
}
MAY_IMPORT_OF_OURS = {
    "rankmem_protos": set[str](),
    "rankmem_agent": {"rankmem_protos"},
    "rankmem_aggregator": {"rankmem_protos"},
    "rankmem_cli": {"rankmem_protos", "rankmem_agent", "rankmem_aggregator"},
}
FOREIGN_HOMES = {
    "duckdb": ("rankmem_aggregator",),
    "typer": ("rankmem_cli",),
    "rich": ("rankmem_cli",),
    "prometheus_client": ("rankmem_aggregator.metrics",),
    "torch": ("rankmem_agent.tap", "rankmem_agent.hooks", "rankmem_agent.preload", "rankmem_cli.demo_train"),
}
HEAVY = {"grpc", "pyarrow", "duckdb", "typer", "rich", "numpy", "google"}
TRAINER = (
    "rankmem_agent",
    "rankmem_agent.__main__",
    "rankmem_agent.config",
    "rankmem_agent.facts",
    "rankmem_agent.preload",
    "rankmem_agent.tap",
    "rankmem_agent.hooks",
    "rankmem_agent.spool.layout",
    "rankmem_agent.spool.folder",
    "rankmem_agent.spool.python_writer",
    "rankmem_agent.ship.election",
)


def _modules(package: str) -> Iterator[tuple[str, Path]]:
    for path in sorted((PACKAGES[package] / package).rglob("*.py")):
        if "_pb2" in path.name:
            continue
        parts = path.relative_to(PACKAGES[package]).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def _imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _within(module: str, homes: tuple[str, ...]) -> bool:
    return any(module == home or module.startswith(home + ".") for home in homes)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_those_before_it(package: str) -> None:
    allowed = MAY_IMPORT_OF_OURS[package] | {package}
    for module, path in _modules(package):
        ours = {name.split(".")[0] for name in _imported(path)} & set(PACKAGES)
        assert ours <= allowed, f"{module} imports {sorted(ours - allowed)}"


@pytest.mark.parametrize("foreign", FOREIGN_HOMES)
def test_a_dependency_is_imported_only_in_its_home(foreign: str) -> None:
    for package in PACKAGES:
        for module, path in _modules(package):
            if foreign in {name.split(".")[0] for name in _imported(path)}:
                assert _within(module, FOREIGN_HOMES[foreign]), f"{module} imports {foreign}"


def _reached_in_the_trainer() -> dict[str, set[str]]:
    """Every module of ours that the trainer's modules reach, with what each imports."""
    known = {module: _imported(path) for package in PACKAGES for module, path in _modules(package)}
    waiting = [module for module in known if _within(module, TRAINER[4:7]) or module in TRAINER]
    reached: dict[str, set[str]] = {}
    while waiting:
        module = waiting.pop()
        if module in reached:
            continue
        reached[module] = known[module]
        waiting += [name for name in known[module] if name in known]
    return reached


def test_nothing_heavy_is_reached_from_the_trainer() -> None:
    for module, imports in _reached_in_the_trainer().items():
        heavy = {name.split(".")[0] for name in imports} & HEAVY
        assert not heavy, f"{module} runs in the trainer and imports {sorted(heavy)}"
