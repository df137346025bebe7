"""The arrows of the house: which room may import which, no circle, and which foreign package lives where."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAY_IMPORT_OF_OURS = {
    "rankmem_protos": set[str](),
    "rankmem_agent": {"rankmem_protos"},
    "rankmem_ship": {"rankmem_protos", "rankmem_agent"},
    "rankmem_imports": {"rankmem_protos", "rankmem_agent", "rankmem_ship"},
    "rankmem_aggregator": {"rankmem_protos"},
    "rankmem_cli": {
        "rankmem_protos", "rankmem_agent", "rankmem_ship", "rankmem_imports", "rankmem_aggregator",
    },
    "rankmem": {"rankmem_protos", "rankmem_agent", "rankmem_ship", "rankmem_aggregator"},
}  # fmt: skip
"""Package by package; ``rankmem_agent`` is what the trainer runs."""
OF_THE_AGENT = (
    "spool", "config", "facts", "launchers", "privacy", "session_ids", "tap.snapshot_format",
    "tap.snapshot_pools",
)  # fmt: skip
"""What may be imported of ``rankmem_agent`` outside of a trainer and of the command that prepares one."""
FOREIGN_HOMES = {
    "duckdb": ("rankmem_aggregator",),
    "typer": ("rankmem_cli",),
    "rich": ("rankmem_cli",),
    "prometheus_client": ("rankmem_aggregator.server.metrics",),
    "opentelemetry": ("rankmem_aggregator.server.otlp",),
    "starlette": ("rankmem_aggregator.page",),
    "uvicorn": ("rankmem_aggregator.page",),
    "ray": ("rankmem_aggregator.lake.on_ray",),
    "pyspark": ("rankmem_aggregator.lake.on_spark",),
    "torch": (
        "rankmem_agent.tap",
        "rankmem_agent.hooks",
        "rankmem_agent.preload",
        "rankmem_cli.run.demo_train",
    ),
}
NOT_IN_THE_TRAINER = {"grpc", "pyarrow", "duckdb", "typer", "rich", "numpy", "google", "pickle", "gzip"}
"""Too heavy, or too trusting, for the user's process."""


@cache
def _modules() -> dict[str, frozenset[str]]:
    """Every module of ours with the names that it imports: anywhere in it, under TYPE_CHECKING as well."""
    return {module: _imported(path) for module, path in _files()}


def _files() -> Iterator[tuple[str, Path]]:
    for folder in ("protos", "agent", "aggregator", "cli"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "_pb2" not in path.name:
                parts = path.relative_to(ROOT / folder).with_suffix("").parts
                yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """A module's statements at every depth; to look into their expressions took four times as long."""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield inner
            yield from _statements(inner)


def _imported(path: Path) -> frozenset[str]:
    names: set[str] = set()
    for node in _statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


@cache
def _arrows() -> dict[str, frozenset[str]]:
    """Module by module, which of ours it needs."""
    known = _modules()
    return {
        module: frozenset(name if name in known else name.rpartition(".")[0] for name in names) & known.keys()
        for module, names in known.items()
    }


def _within(module: str, homes: tuple[str, ...]) -> bool:
    return any(module == home or module.startswith(home + ".") for home in homes)


def test_every_package_is_known_here() -> None:
    assert {module.split(".")[0] for module in _modules()} == set(MAY_IMPORT_OF_OURS)


@pytest.mark.parametrize("package", MAY_IMPORT_OF_OURS)
def test_a_package_imports_only_those_before_it(package: str) -> None:
    allowed = MAY_IMPORT_OF_OURS[package] | {package}
    for module, names in _modules().items():
        if _within(module, (package,)):
            ours = {name.split(".")[0] for name in names} & set(MAY_IMPORT_OF_OURS)
            assert ours <= allowed, f"{module} imports {sorted(ours - allowed)}"


@pytest.mark.parametrize("package", ["rankmem_ship", "rankmem_imports"])
def test_what_runs_beside_the_trainer_takes_the_seam_alone_from_the_agent(package: str) -> None:
    seam = tuple(f"rankmem_agent.{name}" for name in OF_THE_AGENT)
    for module, needed in _arrows().items():
        if _within(module, (package,)):
            others = {n for n in needed if _within(n, ("rankmem_agent",)) and not _within(n, seam)}
            assert others <= {"rankmem_agent"}, f"{module} imports {sorted(others)}"


def test_no_modules_import_each_other_in_a_circle() -> None:
    try:
        tuple(graphlib.TopologicalSorter(_arrows()).static_order())
    except graphlib.CycleError as circle:
        pytest.fail(" <- ".join(circle.args[1]))


@pytest.mark.parametrize("foreign", FOREIGN_HOMES)
def test_a_dependency_is_imported_only_in_its_home(foreign: str) -> None:
    for module, names in _modules().items():
        if foreign in {name.split(".")[0] for name in names}:
            assert _within(module, FOREIGN_HOMES[foreign]), f"{module} imports {foreign}"


def test_nothing_heavy_is_reached_from_the_trainer() -> None:
    arrows, waiting, reached = _arrows(), ["rankmem_agent"], set[str]()
    waiting += [module for module in arrows if _within(module, ("rankmem_agent",))]
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting += arrows[module]
    for module in reached:
        heavy = {name.split(".")[0] for name in _modules()[module]} & NOT_IN_THE_TRAINER
        assert not heavy, f"{module} runs in the trainer and imports {sorted(heavy)}"
