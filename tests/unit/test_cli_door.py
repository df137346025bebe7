"""The error boundary: two lines on stderr, an exit code, a traceback only on request."""

from __future__ import annotations

import pytest

from rankmem_cli import errors
from rankmem_protos.errors import Code, RankmemError


def failing(error: BaseException) -> None:
    raise error


def test_our_error_is_two_lines_and_exit_1(capsys: pytest.CaptureFixture[str]) -> None:
    error = RankmemError(Code.NOT_FOUND, "no session 'x\x1b[2J'", "rankmem sessions")
    assert errors.boundary(lambda: failing(error), verbose=lambda: False) == 1
    assert capsys.readouterr().err == "Error: no session 'x\\x1b[2J'\nTry: rankmem sessions\n"


def test_an_error_without_a_hint_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    error = RankmemError(Code.INVALID, "bad")
    assert errors.boundary(lambda: failing(error), verbose=lambda: False) == 1
    assert capsys.readouterr().err == "Error: bad\n"


def test_an_error_of_several_lines_keeps_them_and_is_made_safe(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise RankmemError(Code.INVALID, "syntax error\n\nLINE 1: SELEC\x1b[31m\n        ^")

    assert errors.boundary(fail, verbose=lambda: False) == 1
    lines = ["Error: syntax error", "  LINE 1: SELEC\\x1b[31m", "          ^"]
    assert capsys.readouterr().err.splitlines() == lines


def test_a_defect_of_ours_is_reported_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert errors.boundary(lambda: failing(KeyError("rank")), verbose=lambda: False) == 1
    err = capsys.readouterr().err
    assert err.startswith("Error: unexpected: KeyError: 'rank'\nTry: rankmem -v")
    assert "Traceback" not in err


def test_verbose_shows_where_it_came_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert errors.boundary(lambda: failing(KeyError("rank")), verbose=lambda: True) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_exit_code_passes_through() -> None:
    with pytest.raises(SystemExit, match="3"):
        errors.boundary(lambda: failing(SystemExit(3)), verbose=lambda: False)


def test_success_is_0() -> None:
    assert errors.boundary(lambda: None, verbose=lambda: False) == 0
