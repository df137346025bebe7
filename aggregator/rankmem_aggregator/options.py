"""An option of a process, declared once, at its field of the configuration.

Stage: wiring. In: fields made by :func:`option`; out: what the command line, the environment, the checks and
the documentation need to know of each. Imports nothing of ours.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_KEY: Final = "option"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A field of a configuration, as users set it."""

    name: str
    """Of the field."""
    default: Any
    help: str
    variable: str
    """Environment variable; empty: none."""
    flag: str
    """``--name``, in messages even where the command line does not have it."""
    metavar: str
    """Of its value on the command line; empty: it is not there, unless it is a switch."""
    least: float | None
    """Least value of a number."""
    shown_default: str
    """What holds where nothing is given; empty: the default itself."""

    @property
    def is_switch(self) -> bool:
        """Whether it takes no value."""
        return isinstance(self.default, bool)

    @property
    def is_on_command_line(self) -> bool:
        """Whether the command line has it."""
        return self.is_switch or bool(self.metavar)

    @property
    def kind(self) -> type:
        """Type of its values; an option that is None by default is a path."""
        return Path if self.default is None or isinstance(self.default, Path) else type(self.default)

    def default_text(self) -> str:
        """What holds where nothing is given; empty: nothing does."""
        if self.shown_default or not self.default:
            return self.shown_default
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)

    def help_text(self) -> str:
        """The help with the variable and the default behind it."""
        facts = {"env": self.variable, "default": self.default_text()}
        known = "; ".join(f"{name}: {text}" for name, text in facts.items() if text)
        return f"{self.help}  [{known}]" if known else self.help


def option(
    default: Any,
    help: str,
    *,
    variable: str = "",
    flag: str = "",
    metavar: str = "",
    least: float | None = None,
    shown_default: str = "",
) -> Any:
    """A dataclass field with its :class:`Option`; see there for the arguments."""
    known = {
        "help": help,
        "variable": variable,
        "flag": flag,
        "metavar": metavar,
        "least": least,
        "shown_default": shown_default,
    }
    return dataclasses.field(default=default, metadata={_KEY: known})


def options_of(config: type[Any]) -> Iterator[Option]:
    """The options of a configuration, in the order of its fields."""
    for field in dataclasses.fields(config):
        known = dict(field.metadata[_KEY])
        known["flag"] = known["flag"] or "--" + field.name.replace("_", "-")
        yield Option(name=field.name, default=field.default, **known)


def environment_rows(config: type[Any]) -> list[str]:
    """Rows of a Markdown table: each environment variable, its option, its meaning and its default."""
    return [
        f"| {found.variable} | {f'`{found.flag}`' if found.is_on_command_line else ''} "
        f"| {found.help} | {found.default_text()} |"
        for found in options_of(config)
        if found.variable
    ]
