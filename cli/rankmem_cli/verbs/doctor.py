"""``rankmem doctor``: what works on this machine, and what to do where something does not."""

from __future__ import annotations

import typer


def doctor() -> None:
    """Check what works on this machine; build the tap beforehand."""
    from rankmem_agent.tap.doctor import examine
    from rankmem_cli.show.render import show_checks

    if not show_checks(examine()):
        raise typer.Exit(1)
