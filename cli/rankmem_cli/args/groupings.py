"""The option ``--by``, with the keys that a verb offers.

Stage: arguments. In comes a word, out goes the same word where the verb offers it.
"""

from __future__ import annotations

from typing import Any

import typer

from rankmem_protos.errors import RankmemError
from rankmem_protos.groupings import Question, grouping_of, offered


def by_option(question: Question, text: str) -> Any:
    """``--by`` of a verb.

    Args:
        text: for the help.
    """

    def checked(word: str) -> str:
        try:
            return grouping_of(word, question).name
        except RankmemError as exc:
            raise typer.BadParameter(f"{exc.message}: {exc.hint}") from exc

    names = [each.name for each in offered(question)]
    return typer.Option(
        "--by", parser=checked, metavar=f"<{'|'.join(names)}>", help=text, autocompletion=lambda: names
    )
