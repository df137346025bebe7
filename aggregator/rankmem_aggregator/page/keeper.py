"""Keeps the page's process alive beside an aggregator: starts it, restarts it when it dies, ends it.

Stage: wiring, in ``rankmem serve --page``. The page is a reader like any other, in a process of its own,
never a thread of the aggregator. This process holds what has to outlive it: the listening socket, so that a
browser that asks while it is started again only waits, and the key of the cookies, so that nobody needs a
new link. Both pass through a pipe and a descriptor, never a command line or an environment. Loads no web
framework.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.host_port import is_every_address, split_address
from rankmem_aggregator.page.config import PageConfig, bind
from rankmem_protos.credentials import Credentials
from rankmem_protos.errors import Code, RankmemError

logger = logging.getLogger(__name__)

START_S: Final = 60.0
"""For the process to load and to listen."""
RESTART_FIRST_S: Final = 0.1
RESTART_MAX_S: Final = 5.0
"""Between two starts of one that dies at once."""
STEADY_S: Final = 60.0
"""One that lived so long is restarted at once."""
END_S: Final = 8.0
"""For it to end by itself, beyond the time that it gives to answers under way."""
KEY_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildOptions:
    """What the process is told, as a line of JSON on its stdin."""

    config: PageConfig
    aggregator: str
    credentials: Credentials
    log_format: str
    listen_fd: int
    events_fd: int
    key: bytes

    def line(self) -> bytes:
        """The options as they are sent."""
        config = {
            name: str(value) if isinstance(value, Path) else value
            for name, value in dataclasses.asdict(self.config).items()
        }
        rest = {
            "aggregator": self.aggregator,
            "log_format": self.log_format,
            "listen_fd": self.listen_fd,
            "events_fd": self.events_fd,
            "key": self.key.hex(),
        }
        return (
            json.dumps({"config": config, "credentials": self.credentials.facts(), **rest}).encode() + b"\n"
        )

    @classmethod
    def parse(cls, line: bytes) -> Self:
        """The options that a line holds."""
        given: dict[str, Any] = json.loads(line)
        config = given.pop("config")
        for name in ("tls_cert", "tls_key", "query_token_file"):
            config[name] = None if config[name] is None else Path(config[name])
        config["names"] = tuple(config["names"])
        credentials = Credentials.from_facts(given.pop("credentials"))
        key = bytes.fromhex(given.pop("key"))
        return cls(config=PageConfig(**config), credentials=credentials, key=key, **given)


class PageKeeper:
    """The page's process, kept alive from :meth:`start` to :meth:`close`.

    Args:
        config: of the aggregator; its ``page`` is where the page is served.
        report: called with a message when the process died and when it is back. The keeper's thread.
    """

    def __init__(self, config: AggregatorConfig, *, report: Callable[[str], None] = logger.warning) -> None:
        self.link = ""
        """Lets one browser in; known once started, good for ten minutes."""
        self.num_restarts = 0
        self._config = config
        self._page = page_config(config)
        self._page.check()
        self._report = report
        self._key = secrets.token_bytes(KEY_BYTES)
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._aggregator = ""
        self._socket = bind(config.page)
        self._thread = threading.Thread(target=self._keep, name="rankmem-page-keeper", daemon=True)

    @property
    def pid(self) -> int:
        """Of the page's current process."""
        return 0 if self._process is None else self._process.pid

    def start(self, aggregator: str) -> None:
        """Starts it; it serves when this returns.

        Args:
            aggregator: HOST:PORT.

        Raises:
            RankmemError: why it cannot serve.
        """
        self._aggregator = _dialled(aggregator)
        self.link = self._start_process()
        self._thread.start()

    def close(self) -> None:
        """Ends it, and waits for that. Idempotent."""
        self._stopping.set()
        process = self._process
        if process is not None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        if self._thread.is_alive():
            self._thread.join(END_S)
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        self.close()

    def kill(self) -> None:
        """Ends it at once. Any thread, also a signal handler."""
        self._stopping.set()
        if self._process is not None:
            self._process.kill()

    def _start_process(self) -> str:
        events_fd, write_fd = os.pipe()
        try:
            options = ChildOptions(
                config=dataclasses.replace(self._page, listen=self._listen()),
                aggregator=self._aggregator,
                credentials=reader_credentials(self._config),
                log_format=self._config.log_format,
                listen_fd=self._socket.fileno(),
                events_fd=write_fd,
                key=self._key,
            )
            # A session of its own: keys of the terminal are for this process.
            process = self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "rankmem_aggregator.page.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=(self._socket.fileno(), write_fd),
                start_new_session=True,
                bufsize=0,
            )
            os.close(write_fd)
            write_fd = -1
            assert process.stdin is not None
            with contextlib.suppress(OSError):  # it has ended, which its events say
                process.stdin.write(options.line())
            return _ready(events_fd, process)
        finally:
            os.close(events_fd)
            if write_fd >= 0:
                os.close(write_fd)

    def _listen(self) -> str:
        host, _ = split_address(self._config.page)
        return f"{f'[{host}]' if ':' in host else host}:{self._socket.getsockname()[1]}"

    def _keep(self) -> None:
        pause_s = RESTART_FIRST_S
        while True:
            assert self._process is not None
            began_s = time.monotonic()
            code = self._process.wait()
            if self._stopping.is_set():
                return
            self._notify(f"the page's process ended ({_how(code)}); it is restarted")
            pause_s = RESTART_FIRST_S if time.monotonic() - began_s > STEADY_S else pause_s
            while True:
                if self._stopping.wait(pause_s):
                    return
                pause_s = min(2 * pause_s, RESTART_MAX_S)
                try:
                    self._start_process()
                except (RankmemError, OSError) as exc:
                    self._notify(f"the page cannot be restarted yet, trying again: {exc}")
                    continue
                break
            self.num_restarts += 1
            self._notify("the page is back; browsers that were let in need no new link")

    def _notify(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads it
            self._report(text)


def page_config(config: AggregatorConfig) -> PageConfig:
    """How the page of an aggregator is served: with the aggregator's TLS and tokens."""
    return PageConfig(
        listen=config.page,
        names=tuple(name.strip() for name in config.page_name.split(",") if name.strip()),
        tls_cert=config.tls_cert,
        tls_key=config.tls_key,
        query_token_file=config.query_token_file,
    )


def reader_credentials(config: AggregatorConfig) -> Credentials:
    """What the page shows to the aggregator: its own query tokens, and of TLS what the environment names.

    Without a CA in the environment it trusts the aggregator's own certificate.
    """
    given = Credentials.from_environment()
    own_ca = None if config.tls_cert is None else str(config.tls_cert)
    return dataclasses.replace(
        given,
        tls_ca=(given.tls_ca or own_ca) if own_ca else None,
        tls_cert=given.tls_cert if own_ca else None,
        tls_key=given.tls_key if own_ca else None,
        token_file=None if config.query_token_file is None else str(config.query_token_file),
    )


def _dialled(address: str) -> str:
    host, port = split_address(address)
    if not is_every_address(host):
        return address
    return f"[::1]:{port}" if ":" in host else f"127.0.0.1:{port}"


def _ready(events_fd: int, process: subprocess.Popen[bytes]) -> str:
    """The link, once the process serves."""
    found = b""
    ends_s = time.monotonic() + START_S
    while b"\n" not in found:
        ready, _, _ = select.select([events_fd], [], [], max(0.0, ends_s - time.monotonic()))
        data = os.read(events_fd, 1 << 16) if ready else b""
        if not data:
            process.kill()
            raise RankmemError(
                Code.UNAVAILABLE,
                f"the page's process did not start: {_how(process.wait())}",
                "see its messages before this",
            )
        found += data
    event = json.loads(found.partition(b"\n")[0])
    if "error" in event:
        process.wait()
        raise RankmemError(Code(event["error"]["code"]), event["error"]["message"], event["error"]["hint"])
    return str(event["link"])


def _how(code: int) -> str:
    try:
        return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
