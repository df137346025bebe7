"""What stays on a job's host: file paths of stacks, prefixes of paths, secrets in the command line.

Stage: the trainer writes the choice into ``meta.json`` and masks the command; the shipper cuts the paths of
stacks before they leave the host (the spool, 0700, has them whole: categories depend on them). Environment
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
     "credentials", "creds", "cred", "cookie", "cookies", "jwt", "otp", "oauth", "webhook", "webhooks"}
)  # fmt: skip
"""Words of an option's name that make its value a secret."""
_AT_THE_END: Final = frozenset(
    {"token", "key", "apikey", "auth", "bearer", "dsn", "pat", "credential", "sig", "signature", "sas"}
)
"""The same as the last word alone: ``--api-key`` is one, ``--key-value-heads`` and ``--max-tokens`` not."""
_ALONE: Final = frozenset({"pass", "pw"})
"""The same as the only word: ``--pass`` is one, ``--second-pass`` not."""
_LOGINS: Final = frozenset({"login", "user", "userpass", "userpwd", "account"})
"""As the last word, and ``-u``: the value is a secret from its colon on, if it has one."""
_P_WORDS: Final = frozenset(
    {"page", "parallel", "parallelism", "param", "params", "partition", "partitions", "path", "paths",
     "patience", "peft", "period", "phase", "pin", "pipeline", "plan", "plot", "plugin", "policy",
     "pool", "port", "ports", "pp", "precision", "prefetch", "prefix", "preset", "pretrained", "print",
     "problem", "process", "processes", "profile", "profiler", "progress", "project", "prompt",
     "protocol", "proxy", "prune", "push", "python"}
)  # fmt: skip
"""Options with one dash that begin with p; any other ``-pTEXT`` is a password, as ``mysql -pSECRET``."""
_NUMBERS: Final = re.compile(r"[-+0-9.,:eE]+")
_GROWN_TOGETHER: Final = re.compile(r"(?:token|password|passwd|secret|(?:api|access|secret|private)keys?)$")
"""How such a word ends where nothing parts it: ``--accesstoken``, ``-Dpassword=…``."""
_SEVERAL: Final = re.compile(r"(?:api|auth|access|secret|private) (?:keys|tokens|key id)$")
_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_USERINFO: Final = re.compile(r"(?<![A-Za-z0-9+.-])(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)[^/\s?#]*@")
_NAMED: Final = re.compile(r"""(?<![\w.-])(?P<name>[A-Za-z_][\w.-]*)["']?\s*[=:]\s*""")
"""A name within a text: JSON, YAML, Hydra's ``{api_key:…}``, connection strings, headers, ``--env=KEY=…``."""
_VALUE: Final = re.compile(r"""["'].*?(?:["']|$)|[^\s"',;&}\])]*""", re.DOTALL)
_IN_A_QUERY: Final = re.compile(r"(?P<name>[?&;][^=&;\s?]+=)(?P<value>[^&;\s#]*)")
_URL: Final = re.compile(
    r"""(?i)(?P<host>\b(?:https?|wss?)://[^/\s?#'"]+|\bhooks\.[\w.-]+)(?P<path>/[^\s?#'",;}\])]+)"""
)
_HOOKS: Final = frozenset({"hook", "hooks", "webhook", "webhooks", "webhookb2"})
"""A label of the host or a part of the path after which the rest of the path is the secret."""
_ID_IN_PATH: Final = re.compile(
    r"(?:bot)?\d+:[\w-]{16,}|[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}"
)
"""Telegram's tokens, and UUIDs."""
_PIECES: Final = re.compile(r"[^A-Za-z0-9]+")
_PIECE_CHARS_MIN: Final = 16
"""So many letters and digits in one piece are hardly the name of a folder."""
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
        """From :meth:`facts`; nothing: everything leaves the host."""
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
        """The path with its longest mapped prefix replaced."""
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
    """The arguments; values of options that suggest a secret, userinfo of URLs, known tokens are masked."""
    shown: list[str] = []
    option = ""  # whose value comes next
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if option and not argument.startswith("-" if option == "-p" else "--"):
            shown.append(_masked_value(option, argument))
            option = ""
            continue
        option = argument if not equals and _has_value(argument) else ""
        if _is_password(argument):
            shown.append(f"-p{MASK}")
        elif equals:
            shown.append(f"{name}={_masked_value(name, value)}")
        else:
            shown.append(_masked_text(argument))
    return shown


def _has_value(option: str) -> bool:
    """Whether what follows the option may be a secret."""
    return option.startswith("-") and (option == "-p" or _is_login(option) or is_secret(option))


def _is_login(option: str) -> bool:
    words = _WORDS.findall(option)
    return option == "-u" or (bool(words) and words[-1].lower() in _LOGINS)


def _is_password(argument: str) -> bool:
    """Whether it is a password joined to its option: ``-pSECRET``."""
    if not argument.startswith("-p") or len(argument) == 2:
        return False
    rest = argument[2:].removeprefix("=")
    first_word = re.split(r"[^A-Za-z]", argument[1:], maxsplit=1)[0]
    return _NUMBERS.fullmatch(rest) is None and not (first_word in _P_WORDS or is_secret(argument))


def _masked_value(option: str, value: str) -> str:
    if is_secret(option):
        return MASK
    is_number = _NUMBERS.fullmatch(value) is not None
    if option == "-p":
        return value if is_number else MASK
    user, colon, password = value.partition(":")
    if _is_login(option) and colon and password and not is_number:
        return f"{user}:{MASK}"
    return _masked_text(value)


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
    text = _URL.sub(_masked_url, _USERINFO.sub(rf"\g<scheme>{MASK}@", text))
    text = _IN_A_QUERY.sub(
        lambda found: found["name"] + (MASK if is_secret(found["name"].strip("?&;=")) else found["value"]),
        text,
    )
    text = _BEARER.sub(rf"\g<name>{MASK}", _HEADER.sub(rf"\g<name>{MASK}", text))
    return _KNOWN.sub(MASK, _masked_values(text))


def _masked_url(found: re.Match[str]) -> str:
    """The URL without the secrets in its path: anyone who has the address of a webhook may post to it."""
    labels, parts = re.split(r"[/.@]", found["host"].lower()), found["path"].split("/")
    if not _HOOKS.isdisjoint(labels) or not _HOOKS.isdisjoint(parts):
        return f"{found['host']}/{MASK}"
    return found["host"] + "/".join(MASK if _is_token(part) else part for part in parts)


def _is_token(part: str) -> bool:
    if _ID_IN_PATH.fullmatch(part):
        return True
    long = [piece for piece in _PIECES.split(part) if len(piece) >= _PIECE_CHARS_MIN]
    return any(not piece.isalpha() and not piece.isdigit() for piece in long)


def _masked_values(text: str) -> str:
    """The text without the values of names that suggest a secret."""
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
