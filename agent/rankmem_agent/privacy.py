"""What of a job stays on its host: file paths of stacks, prefixes of paths, secrets in the command line.

Stage: the trainer writes the choice into ``meta.json`` and masks the command; the shipper cuts the paths of
stacks before they leave the host (the spool, 0700, has them whole: categories are told by them). Environment
variables are recorded nowhere. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from rankmem_protos.errors import Code, RankmemError

MASK: Final = "***"
OUTSIDE: Final = "<outside>"
"""In place of a path: a frame outside of the project, as ``<string>`` is. Inside it: an empty text."""
_ANYWHERE: Final = frozenset(
    {"secret", "secrets", "password", "passwords", "passwd", "passphrase", "passcode", "passkey", "pwd",
     "credentials", "cookie", "cookies", "jwt", "otp", "oauth"}
)  # fmt: skip
"""Words of an option's name that make its value a secret."""
_AT_THE_END: Final = frozenset(
    {"token", "key", "apikey", "auth", "bearer", "dsn", "pat", "credential", "sig", "signature", "sas"}
)
"""The same as the last word alone: ``--api-key`` is one, ``--key-value-heads`` and ``--max-tokens`` not."""
_ALONE: Final = frozenset({"pass", "pw"})
"""The same as the only word: ``--pass`` is one, ``--second-pass`` not."""
_GROWN_TOGETHER: Final = re.compile(r"(?:token|password|passwd|secret|(?:api|access|secret|private)keys?)$")
"""How such a word ends where nothing parts it: ``--accesstoken``, ``-Dpassword=…``."""
_SEVERAL: Final = re.compile(r"(?:api|auth|access|secret|private) (?:keys|tokens|key id)$")
_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_USERINFO: Final = re.compile(r"(?<![A-Za-z0-9+.-])(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)[^/\s?#]*@")
_NAMED: Final = re.compile(r"""(?<![\w.-])(?P<name>[A-Za-z_][\w.-]*)["']?\s*[=:]\s*""")
"""A name within a text: JSON, YAML, Hydra's ``{api_key:…}``, connection strings, headers, ``--env=KEY=…``."""
_VALUE: Final = re.compile(r"""["'].*?(?:["']|$)|[^\s"',;&}\])]*""", re.DOTALL)
_IN_A_QUERY: Final = re.compile(r"(?P<name>[?&;][^=&;\s?]+=)(?P<value>[^&;\s#]*)")
_HEADER: Final = re.compile(r"(?i)(?P<name>\b(?:authorization|x-api-key|cookie)\s*:\s*).+")
_BEARER: Final = re.compile(r"(?i)(?P<name>\bbearer\s+)\S+")
_KNOWN: Final = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_|gh[oprsu]_|github_pat_|glpat-|[gs]sk_|[rs]k_(?:live|test)_|sk-|xox[abprs]-|AKIA|ASIA|AIza"
    r"|eyJ|npm_|pypi-|dckr_pat_|ya29\.|r8_|nvapi-|SG\.|wandb_v1_)[A-Za-z0-9_.\-]{16,}"
)
"""How the tokens of hubs, forges, clouds and JSON web tokens begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Privacy:
    """The user's choice for one job."""

    files: bool = True
    """Frames have their file and line; otherwise their function alone. ``RANKMEM_STACKS=names``."""
    path_map: tuple[tuple[str, str], ...] = ()
    """Beginnings of paths and what stands in their place, the longest first. ``RANKMEM_PATH_MAP``."""

    @classmethod
    def from_text(cls, text: str, *, files: bool) -> Self:
        """From ``/home/me=~,/scratch/project=``.

        Raises:
            RankmemError: INVALID where a beginning is not absolute.
        """
        pairs = [part.strip().partition("=") for part in text.split(",") if part.strip()]
        for prefix, equals, _ in pairs:
            if not equals or not prefix.startswith("/") or not prefix.strip("/"):
                raise RankmemError(
                    Code.INVALID,
                    f"RANKMEM_PATH_MAP={text!r} cannot be used",
                    "RANKMEM_PATH_MAP=/home/me=~,/scratch/x=X: absolute paths and what stands in their place",
                )
        found = [(prefix.rstrip("/"), shown.rstrip("/")) for prefix, _, shown in pairs]
        return cls(files=files, path_map=tuple(sorted(found, key=lambda pair: -len(pair[0]))))

    @classmethod
    def from_facts(cls, facts: Mapping[str, object]) -> Self:
        """What :meth:`facts` gave; nothing: everything is told."""
        pairs = facts.get("path_map") or ()
        assert isinstance(pairs, list | tuple)
        return cls(
            files=facts.get("files") is not False,
            path_map=tuple((str(prefix), str(shown)) for prefix, shown in pairs),
        )

    def facts(self) -> dict[str, object]:
        """As JSON can carry it."""
        return {"files": self.files, "path_map": [list(pair) for pair in self.path_map]}

    def path(self, path: str) -> str:
        """The path with the longest beginning that is mapped replaced."""
        for prefix, shown in self.path_map:
            if path == prefix or path.startswith(prefix + "/"):
                rest = path[len(prefix) :]
                return shown + rest if shown else rest.lstrip("/")
        return path

    def frame(self, path: str, line: int, *, inside: bool) -> tuple[str, int]:
        """File and line of a frame as they leave the host; ``inside`` the project, paths are relative."""
        if not self.files:
            return ("" if inside else OUTSIDE), 0
        return (path if inside else self.path(path)), line

    def command(self, script: str, arguments: Sequence[str]) -> str:
        """A command line without secrets, paths mapped wherever they stand in it."""
        return " ".join(self._paths(word) for word in [script, *masked(arguments)])

    def text(self, text: str) -> str:
        """A message without secrets, paths mapped wherever they stand in it."""
        return self._paths(_masked_text(text))

    def _paths(self, word: str) -> str:
        for prefix, shown in self.path_map:
            # Where a path begins and its component ends: /home/me, not /home/mellow or /mnt/home/me.
            pattern = rf"(?<![\w/.-]){re.escape(prefix)}(?=/|$|[^\w.-])"
            word = re.sub(pattern, shown.replace("\\", r"\\"), word)
        return word


def masked(arguments: Sequence[str]) -> list[str]:
    """The arguments; masked are values of options that sound secret, userinfo of URLs, known tokens."""
    shown: list[str] = []
    secret_follows = False
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if secret_follows and not argument.startswith("--"):
            shown.append(MASK)
            secret_follows = False
            continue
        secret_follows = not equals and argument.startswith("-") and is_secret(argument)
        if equals and is_secret(name):
            shown.append(f"{name}={MASK}")
        else:
            shown.append(f"{name}={_masked_text(value)}" if equals else _masked_text(argument))
    return shown


def is_secret(name: str) -> bool:
    """Whether an option of that name carries a secret: ``--hf-token``, ``wandb.api_key``, ``DB_PASSWORD``."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words or words[-1] == "file":
        return False
    return (
        words[-1] in _AT_THE_END
        or not _ANYWHERE.isdisjoint(words)
        or (len(words) == 1 and words[0] in _ALONE)
        or _GROWN_TOGETHER.search(words[-1]) is not None
        or _SEVERAL.search(" ".join(words)) is not None
    )


def _masked_text(text: str) -> str:
    text = _USERINFO.sub(rf"\g<scheme>{MASK}@", text)
    text = _IN_A_QUERY.sub(
        lambda found: found["name"] + (MASK if is_secret(found["name"].strip("?&;=")) else found["value"]),
        text,
    )
    text = _BEARER.sub(rf"\g<name>{MASK}", _HEADER.sub(rf"\g<name>{MASK}", text))
    return _KNOWN.sub(MASK, _masked_values(text))


def _masked_values(text: str) -> str:
    """The text without the values of names within it that sound secret."""
    parts, begin, found = [], 0, _NAMED.search(text)
    while found is not None:
        end = found.end()
        parts.append(text[begin:end])
        value = _VALUE.match(text, end) if is_secret(found["name"]) else None
        if value is not None and value[0]:
            parts.append(MASK)
            end = value.end()
        begin, found = end, _NAMED.search(text, end)
    return "".join(parts) + text[begin:]
