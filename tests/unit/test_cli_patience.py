"""A progress line appears only on a terminal and if something takes long."""

from __future__ import annotations

import io
import threading

import pytest

from rankmem_cli.show import progress as module
from rankmem_cli.show.progress import show_progress


class Terminal(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if "copying" in text:
            self.written.set()
        return super().write(text)


def test_a_pipe_gets_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(module, "AFTER_S", 0.0)
    with show_progress("asking") as update:
        update("still asking")
    assert capsys.readouterr().err == ""


def test_what_is_quick_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(module, "AFTER_S", 60.0)
    with show_progress("copying"):
        pass
    assert not terminal.written.is_set()


def test_what_takes_long_is_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(module, "AFTER_S", 0.0)
    with show_progress("copying\x1b]0;x"):
        assert terminal.written.wait(timeout=30)
    assert "\x1b]0" not in terminal.getvalue()
