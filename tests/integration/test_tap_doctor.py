"""``rankmem doctor``'s checks on this very machine."""

from __future__ import annotations

from typer.testing import CliRunner

from rankmem_agent.tap import doctor
from rankmem_cli.main import app


def test_doctor_finds_all_well_where_the_tests_run() -> None:
    checks = {check.name: check for check in doctor.examine()}
    assert {
        "torch",
        "compiler",
        "torch headers",
        "tap",
        "self test",
        "cpu memory",
        "python stacks",
        "modules",
        "spool folder",
    } <= set(checks)
    assert [check for check in checks.values() if not check.ok and "CUDA" not in check.name] == []
    assert "not seen" not in checks["cpu memory"].detail
    assert "64 of 64 blocks got and 64 given back" in checks["self test"].detail


def test_the_command_says_so() -> None:
    done = CliRunner().invoke(app, ["doctor"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "64 of 64 blocks got and 64 given back" in done.output
