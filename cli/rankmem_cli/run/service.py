"""``rankmem serve``: starts an aggregator's process, prints its address, keeps it alive, drains it.

Stage: the parent of the aggregator's process, main thread. The first signal drains (received batches are
stored and acknowledged), the second ends both processes at once. Loads neither DuckDB nor gRPC.
"""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, Final

from rankmem_aggregator.server.process_exit import drain_on_signals
from rankmem_cli.show.render import note
from rankmem_protos.errors import Code, RankmemError

if TYPE_CHECKING:
    from rankmem_aggregator.config import AggregatorConfig
    from rankmem_aggregator.page.keeper import PageKeeper
    from rankmem_aggregator.supervision.supervisor import Supervisor

SIGNALS_SEEN_S: Final = 1.0
"""A signal delivered to another thread is handled when the main one wakes; without a limit it never does."""


def serve_until_signalled(config: AggregatorConfig) -> None:
    """Runs an aggregator in a process of its own until SIGTERM or SIGINT; restarts it when it dies.

    Raises:
        RankmemError: it cannot be opened, or not everything received could be stored.
    """
    from rankmem_aggregator import logs
    from rankmem_aggregator.supervision.supervisor import Supervisor

    logs.configure(config.log_format)
    # Our parent may ignore it: the kernel would then keep no exit codes of children.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    page = _page(config)
    supervisor = Supervisor(config)
    with page if page is not None else contextlib.nullcontext():
        _serve(config, supervisor, page)


def _serve(config: AggregatorConfig, supervisor: Supervisor, page: PageKeeper | None) -> None:
    supervisor.start()

    def drain() -> None:
        supervisor.stop()
        _print_note("rankmem: draining; repeat the signal to stop at once")

    def kill() -> None:
        supervisor.kill()
        if page is not None:
            page.kill()

    drain_on_signals(drain, kill)
    _print_note(
        f"rankmem: listening on {supervisor.address}, writing {config.lake or config.database_path}; "
        "Ctrl-C drains and ends"
    )
    if supervisor.metrics_address:
        _print_note(f"rankmem: metrics at http://{supervisor.metrics_address}/metrics")
    if page is not None:
        _start_page(page, supervisor.address)
    while not supervisor.wait(SIGNALS_SEEN_S):
        pass
    if not supervisor.close():
        raise RankmemError(
            Code.UNAVAILABLE,
            "not everything received could be stored in time",
            "the shippers keep the rest and send it again when an aggregator is back",
        )


def _start_page(page: PageKeeper, address: str) -> None:
    """Starts the page; recording goes on where that fails."""
    try:
        page.start(address)
    except (RankmemError, OSError) as exc:
        _print_note(f"rankmem: there is no page: {exc}; rankmem page --aggregator {address} serves one")
        return
    _print_note(f"rankmem: the page is at {page.link}")
    _print_note("rankmem: the link lets one browser in, within ten minutes; others come with a query token")


def _page(config: AggregatorConfig) -> PageKeeper | None:
    """The page's keeper; its address is taken before the database is opened."""
    if not config.page:
        return None
    from rankmem_aggregator.page.keeper import PageKeeper

    return PageKeeper(config)


def _print_note(text: str) -> None:
    """Prints a note if stderr is still open: behind ``2>&1 | tee``, Ctrl-C ends tee first."""
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # the last: within another note
        note(text)
