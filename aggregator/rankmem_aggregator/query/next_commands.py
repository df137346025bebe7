"""The commands that rankmem's texts name, completed so that they ask what the reader has just asked.

Stage: between an answer or an error and whoever shows it: the command line, the page. In: a text of an
insight, a hint or a note, which knows neither the reader's shell nor its options and names commands by verb
and arguments: ``rankmem live --rank 3``. Out: the same with the options of the reader's own command after
each verb. What an environment variable or a default names is not repeated: the same shell finds it again.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from rankmem_protos.errors import RankmemError

STORES: Final = ("--db", "--lake", "--aggregator")
"""Options that exclude each other: where an answer comes from."""
_ACCESS: Final = ("--tls-ca", "--tls-cert", "--tls-key", "--token-file")
_SOURCE: Final = (*STORES, "--engine", *_ACCESS)
_OF_SESSION: Final = (
    "diagnose", "export", "fit", "fragmentation", "hosts", "imbalance", "job-peak", "leaks", "ledger", "live",
    "modules", "oom", "ops", "page", "peak", "ranks", "status", "steps", "timeline", "top", "weights",
    "whatif",
)  # fmt: skip
OPTIONS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        **dict.fromkeys(_OF_SESSION, (*_SOURCE, "--session")),
        "sessions": _SOURCE,
        "sql": (*STORES, *_ACCESS),
        "fetch": ("--aggregator", *_ACCESS),
        "run": ("--db", "--aggregator", *_ACCESS),
        "lake check": ("--lake",),
    }
)
"""By verb the options that say what it is about. Verbs that delete or deliver are about what their text
says."""
_VERB: Final = re.compile(
    rf"\brankmem ({'|'.join(sorted(OPTIONS, key=len, reverse=True))})(?=[;:,.)'\"]*(?:\s|$))"
)
_END: Final = re.compile(r"[;:,)](?!\S)|\brankmem ")
"""Where the words end that may belong to a command."""
_OWN: Final = "\0"
"""In place of each character of a value that the reader gave."""
_OTHER_STORE: Final = re.compile(rf"(?<!\S)(?:{'|'.join(STORES)})(?![\w-])(?! {_OWN})")
"""A store in a text that the reader did not name, or not by an option."""
_WORD: Final = r"""(?:"[^"]*"|'[^']*'|[^\s"'])+"""
COMMAND: Final = re.compile(
    rf"\brankmem (?:lake )?[a-z][a-z-]*(?: --[a-z-]+(?:[ =](?!--){_WORD})?| (?:\"[^\"]*\"|'[^']*'))*"
)
"""A command in a text, its options included; after an option without a value perhaps the next word too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenOptions:
    """The options by which a user's command named what it asked."""

    source: tuple[tuple[str, str], ...] = ()
    """Option and value, as they were given: where to ask."""
    session: str | None = None
    """Full id where one was chosen; None: the newest was asked, and is again."""

    def text(self, verb: str = "peak") -> str:
        """The options as a shell reads them, as far as a verb has them."""
        return shlex.join(word for pair in self._of(verb) for word in pair)

    def complete(self, text: str) -> str:
        """The text with these options in each command that can have them and does not; may be repeated."""
        if not self.source and self.session is None:
            return text
        found: list[str] = []
        at = 0
        seen = self._without_values(text)
        for match in _VERB.finditer(seen):
            end = _END.search(seen, match.end())
            arguments = seen[match.end() : end.start() if end else len(seen)]
            found.append(text[at : match.end()])
            found += [f" {shlex.join(pair)}" for pair in self._missing(match[1], arguments)]
            at = match.end()
        return "".join((*found, text[at:]))

    @contextmanager
    def in_hints(self) -> Iterator[None]:
        """A context in which the hints of errors get these options."""
        try:
            yield
        except RankmemError as exc:
            exc.hint = self.complete(exc.hint)
            raise

    def _without_values(self, text: str) -> str:
        """The text, as long, with these options' values made unreadable: a path may have any words."""
        for pair in self._of("peak"):
            written = shlex.join(pair)
            text = text.replace(written, f"{pair[0]} ".ljust(len(written), _OWN))
        return text

    def _missing(self, verb: str, arguments: str) -> list[tuple[str, str]]:
        there = set(re.findall(r"(?<!\S)--[a-z-]+", arguments))
        other = _OTHER_STORE.search(arguments)
        if other and (other[0] != "--aggregator" or any(name in STORES for name, _ in self.source)):
            return []  # it is about another store
        return [pair for pair in self._of(verb) if pair[0] not in there]

    def _of(self, verb: str) -> list[tuple[str, str]]:
        session = [] if self.session is None else [("--session", self.session)]
        return [pair for pair in (*self.source, *session) if pair[0] in OPTIONS[verb]]
