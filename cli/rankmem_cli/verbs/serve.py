"""``rankmem serve``: an aggregator of its own. Its options are the fields of ``AggregatorConfig``."""

from __future__ import annotations

import inspect
from typing import Any

import typer

from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.options import Option, options_of


def serve(**given: Any) -> None:
    """Run an aggregator: store what shippers send, answer queries.

    The first signal drains, the second stops. It runs in a process of its own, which is restarted when it
    dies; a statement that ended it is refused from then on.
    """
    from rankmem_cli.run.service import serve_until_signalled

    # A switch that is off was not given.
    options = {name: None if value is False else value for name, value in given.items()}
    serve_until_signalled(AggregatorConfig.from_environment(**options))


def _parameter(option: Option) -> inspect.Parameter:
    shown: Any = (
        typer.Option(False, option.flag, help=option.help_text())
        if option.is_switch
        else typer.Option(None, option.flag, metavar=option.metavar, help=option.help_text())
    )
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=shown,
        annotation=bool if option.is_switch else option.kind | None,
    )


serve.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # typer makes the options from it
    [_parameter(option) for option in options_of(AggregatorConfig) if option.is_on_command_line]
)
