"""The command as a child: its exit code, its signals, and nothing of ours in between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest

from rankmem_cli.run import child
from rankmem_cli.run.child import SignalRelay


@pytest.fixture
def children_are_ignored() -> Iterator[None]:
    """As ``trap '' CHLD`` leaves it, in whatever started us."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    yield
    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN, "as it was"
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("children_are_ignored")
def test_the_exit_code_is_known_where_the_ends_of_children_are_ignored() -> None:
    exit_codes: list[int] = []
    with SignalRelay() as relay:
        command = (sys.executable, "-S", "-c", "raise SystemExit(3)")
        code = relay.run(command, os.environ, ended=lambda pid, exited: exit_codes.append(exited.code))
    assert (code, exit_codes) == (3, [3])


@pytest.mark.usefixtures("children_are_ignored")
def test_the_command_ignores_the_signals_that_it_would_ignore_without_us(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    asks = f"import signal; open({str(seen)!r}, 'w').write(str(signal.getsignal(signal.SIGCHLD).value))"
    with SignalRelay() as relay:
        assert relay.run((sys.executable, "-S", "-c", asks), os.environ) == 0
    assert seen.read_text() == str(signal.SIG_IGN.value)


@pytest.mark.usefixtures("children_are_ignored")
def test_the_command_starts_beside_the_threads_of_grpc() -> None:
    """A child that runs Python between fork and exec crashes in gRPC's handlers, one time in four."""
    server = grpc.server(futures.ThreadPoolExecutor(2))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            grpc.channel_ready_future(channel).result(10)
            codes = []
            for _ in range(20):
                with SignalRelay() as relay:
                    codes.append(relay.run((sys.executable, "-S", "-c", ""), os.environ))
    finally:
        server.stop(0).wait(10)
    assert codes == [0] * 20


@pytest.mark.usefixtures("children_are_ignored")
def test_a_command_that_cannot_be_executed_is_an_os_error_with_children_ignored(tmp_path: Path) -> None:
    script = tmp_path / "no-interpreter"
    script.write_text("#!/nonexistent/interpreter\n")
    script.chmod(0o755)
    with SignalRelay() as relay, pytest.raises(FileNotFoundError, match="no-interpreter"):
        relay.run((str(script),), os.environ)


@pytest.mark.parametrize("ignored", [False, True])
def test_a_script_without_an_interpreters_line_is_a_shells(
    ignored: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if ignored:
        request.getfixturevalue("children_are_ignored")
    script = tmp_path / "train"
    script.write_text("exit $1\n")
    script.chmod(0o755)
    with SignalRelay() as relay:
        assert relay.run((str(script), "7"), os.environ) == 7
    with SignalRelay() as relay:
        assert relay.run(("train", "8"), {**os.environ, "PATH": f"{tmp_path}:/bin"}) == 8


@pytest.mark.usefixtures("children_are_ignored")
def test_a_broken_pipe_ends_the_command_with_children_ignored() -> None:
    with SignalRelay() as relay:
        assert relay.run(("sh", "-c", "kill -PIPE $$"), os.environ) == 128 + signal.SIGPIPE


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_just_as_the_command_ends_leaves_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    exit_codes: list[int] = []

    def wait_and_receive(process: subprocess.Popen[bytes], meanwhile: Callable[[], None]) -> None:
        waits(process, meanwhile)
        os.kill(os.getpid(), number)

    waits = child._wait
    monkeypatch.setattr(child, "_wait", wait_and_receive)
    with SignalRelay() as relay:
        command = (sys.executable, "-S", "-c", "import os; os.setpgid(0, 0); raise SystemExit(7)")
        code = relay.run(command, os.environ, ended=lambda pid, exited: exit_codes.append(exited.code))
    assert (code, exit_codes) == (7, [7])


def test_a_signal_that_may_not_be_sent_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, number: int) -> None:
        if number == signal.SIGTERM:
            raise PermissionError
        kill(pid, number)

    def receive(process: subprocess.Popen[bytes], meanwhile: Callable[[], None]) -> None:
        signal.raise_signal(signal.SIGTERM)

    kill = os.kill
    monkeypatch.setattr(child, "_wait", receive)
    monkeypatch.setattr(os, "kill", refuse)
    with SignalRelay() as relay:
        assert relay.run((sys.executable, "-S", "-c", "raise SystemExit(7)"), os.environ) == 7


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_after_the_end_of_all_leaves_the_exit_code(number: signal.Signals) -> None:
    ends = (
        "import os, signal, sys; from rankmem_cli.run.child import SignalRelay\n"
        "with SignalRelay(is_last=True) as relay: code = relay.run(('sh', '-c', 'exit 7'), os.environ)\n"
        f"signal.raise_signal({number.value}); sys.exit(code)"
    )
    ended = subprocess.run([sys.executable, "-c", ends], check=False, timeout=60)
    assert ended.returncode == 7


def test_signals_end_the_process_again_where_no_command_was_run() -> None:
    with SignalRelay(is_last=True):
        pass
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_program_of_another_machine_is_not_run_as_a_script(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(57) + b"\ntouch ran\n")
    foreign.chmod(0o755)
    with SignalRelay() as relay, pytest.raises(OSError, match="Exec format error"):
        relay.run((str(foreign),), os.environ, tmp_path)
    assert not (tmp_path / "ran").exists()
