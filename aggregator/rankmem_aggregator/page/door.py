"""Who may ask: the host by which the page is reached, where a request comes from, and who sent it.

Stage: page, before every route. A browser shows a code that works once (``#code=…`` of the printed link,
which no log sees) and gets a cookie; a program sends a bearer token of ``--query-token-file``. Also on
loopback: other users of this host reach its ports. Of codes only digests are kept. A cookie is signed with
the page's key and nothing of it is kept, so it outlives a page that ``rankmem serve`` starts again with the
same key. In uvicorn's event loop; nothing here waits.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import struct
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from rankmem_aggregator.host_port import plain_address
from rankmem_aggregator.page.refusal import Refusal
from rankmem_aggregator.server.tokens import Right, Tokens
from rankmem_protos.channel import SCHEME
from rankmem_protos.errors import Code, RankmemError

CODE_BYTES: Final = 16
CODE_S: Final = 600.0
"""A code is good for so long, and once."""
CODES_MAX: Final = 64
"""Codes that nobody has used yet; the oldest is forgotten."""
KEY_BYTES: Final = 32
COOKIE_BYTES: Final = 32
COOKIE_S: Final = 12 * 3600
COOKIES_SHOWN_MAX: Final = 8
"""Cookies of our name in one request: other paths or an older key may have left some."""
TRIES_PER_MINUTE: Final = 10
"""Wrong codes of a client."""
CLIENTS_MAX: Final = 1024
"""Whose wrong codes are counted; the oldest are forgotten."""
_TIME: Final = struct.Struct(">Q")


@dataclass(slots=True)
class Door:
    """The page's codes, cookies and tokens.

    Args:
        port: of the page, for the cookie's name: cookies of a host are shared by all of its ports.
        names: of the hosts by which the page may be reached, in lower case, without a port.
        tokens: of programs; none: only cookies let in.
        secure: the page is served with TLS.
        key: signs the cookies.
        any_address: every address of this host is served: an address that the request came to is a name, too.
    """

    port: int
    names: frozenset[str]
    tokens: Tokens
    secure: bool
    key: bytes = field(default_factory=lambda: secrets.token_bytes(KEY_BYTES), repr=False)
    any_address: bool = False
    _codes: dict[bytes, float] = field(default_factory=dict, repr=False)
    _tries: dict[str, list[float]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def cookie_name(self) -> str:
        """The name of the cookie; with TLS one that a browser takes from this host alone, for all paths."""
        return f"__Host-rankmem-{self.port}" if self.secure else f"rankmem-{self.port}"

    def new_code(self) -> str:
        """A code for one browser."""
        code = secrets.token_urlsafe(CODE_BYTES)
        with self._lock:
            self._codes[_digest(code)] = time.monotonic() + CODE_S
            while len(self._codes) > CODES_MAX:
                del self._codes[next(iter(self._codes))]
        return code

    def let_in(self, code: str, client: str) -> str:
        """The cookie for who shows this code, which is used up.

        Raises:
            RankmemError: DENIED for a wrong code; EXHAUSTED for one after too many of this client. A right
                one is taken even then: another user of this host has the same address, and 128 bits are not
                guessed.
        """
        now_s = time.monotonic()
        with self._lock:
            if not self._take(_digest(code), now_s):
                self._count_wrong(client, now_s)
                raise RankmemError(
                    Code.DENIED,
                    "this link was used before, or is older than ten minutes",
                    "start rankmem page again, or open the link that it printed last",
                )
        return self._new_cookie()

    def let_in_by_token(self, token: str, client: str) -> str:
        """The cookie for who shows a token of programs: a person to whom no link was printed.

        Raises:
            RankmemError: DENIED for a wrong one; EXHAUSTED after too many wrong ones of this client.
        """
        if Right.QUERY not in self.tokens.rights_of(token):
            with self._lock:
                self._count_wrong(client, time.monotonic())
            raise RankmemError(
                Code.DENIED,
                "the token is not one of this page's",
                "give one of the lines of --query-token-file",
            )
        return self._new_cookie()

    def set_cookie(self, cookie: str) -> str:
        """The value of the header ``Set-Cookie``."""
        secure = "; Secure" if self.secure else ""
        return f"{self.cookie_name}={cookie}; Path=/; Max-Age={COOKIE_S}; HttpOnly; SameSite=Strict{secure}"

    def check_host(self, headers: Mapping[str, str], reached: str = "") -> None:
        """Refuses a request to another name: a foreign page that had its own name resolve to this address.

        The port may be another one: that of an SSH tunnel's end.

        Args:
            headers: of the request.
            reached: the address of this host that it came to.

        Raises:
            RankmemError: DENIED.
        """
        host = headers.get("host", "")
        name = _name_of(host)
        if name is not None and name in self.names:
            return
        if name is not None and self.any_address and reached and name == plain_address(reached):
            return
        raise Refusal(
            421,
            Code.DENIED,
            f"this page is not reached by the name {host[:80]!r}",
            "open the address that rankmem page printed, or allow the name: --page-name NAME",
        )

    def check_origin(self, headers: Mapping[str, str], method: str) -> None:
        """Refuses a request that another site's page has the browser send.

        Raises:
            RankmemError: DENIED.
        """
        if "authorization" in headers:  # no browser adds it by itself; check_caller then takes nothing else
            return
        reads = method in ("GET", "HEAD")
        site = headers.get("sec-fetch-site", "none" if reads else "")
        if site not in (("same-origin", "none") if reads else ("same-origin",)):
            raise _foreign()
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != headers.get("host", ""):
            raise _foreign()

    def check_caller(self, headers: Mapping[str, str]) -> str:
        """Who asks, as a text that tells callers apart; refuses who has neither a cookie nor a token.

        Raises:
            RankmemError: DENIED.
        """
        shown = headers.get("authorization")
        if shown is not None:
            if shown.startswith(SCHEME) and Right.QUERY in self.tokens.rights_of(shown.removeprefix(SCHEME)):
                return _digest(shown).hex()
            raise Refusal(
                401,
                Code.DENIED,
                "the token is not one of this page's",
                "send one of the lines of --query-token-file: Authorization: Bearer TOKEN",
            )
        for cookie in self._cookies_of(headers):
            if self._is_ours(cookie):
                return _digest(cookie).hex()
        raise Refusal(
            401,
            Code.DENIED,
            "this browser has not been let in, or its twelve hours are over",
            "open the link that rankmem page printed, or start it again for a new one",
        )

    def _take(self, shown: bytes, now_s: float) -> bool:
        found = False
        for known in list(self._codes):
            if self._codes[known] < now_s:
                del self._codes[known]
            elif hmac.compare_digest(known, shown):
                del self._codes[known]
                found = True
        return found

    def _count_wrong(self, client: str, now_s: float) -> None:
        tries = [at_s for at_s in self._tries.pop(client, []) if now_s - at_s < 60]
        if len(tries) >= TRIES_PER_MINUTE:
            self._tries[client] = tries
            raise RankmemError(Code.EXHAUSTED, "too many wrong codes", "wait a minute, then try again")
        self._tries[client] = [*tries, now_s]
        while len(self._tries) > CLIENTS_MAX:
            del self._tries[next(iter(self._tries))]

    def _new_cookie(self) -> str:
        ends = _TIME.pack(int(time.time()) + COOKIE_S)
        body = _text(ends + secrets.token_bytes(COOKIE_BYTES))
        return f"{body}.{self._signature(body)}"

    def _is_ours(self, cookie: str) -> bool:
        body, _, signature = cookie.partition(".")
        if not hmac.compare_digest(self._signature(body).encode(), signature.encode("utf-8", "replace")):
            return False
        ends_s: int = _TIME.unpack_from(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))[0]
        return time.time() < ends_s

    def _signature(self, body: str) -> str:
        text = f"{self.cookie_name}\0{body}".encode("utf-8", "replace")
        return _text(hmac.digest(self.key, text, "sha256"))

    def _cookies_of(self, headers: Mapping[str, str]) -> list[str]:
        # By hand: http.cookies gives up at the first one that it does not like, such as another page's JSON.
        parts = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
        return [value for name, _, value in parts if name == self.cookie_name][:COOKIES_SHOWN_MAX]


def _name_of(host: str) -> str | None:
    """The name of a Host header, without its port and brackets, in lower case; None for what is none."""
    if host.startswith("["):
        name, end, port = host[1:].partition("]")
        if not end or (port and not port.startswith(":")):
            return None
        port = port[1:]
    else:
        name, _, port = host.partition(":")
    if port and not (port.isascii() and port.isdigit() and len(port) <= 5):
        return None
    return plain_address(name)


def _foreign() -> RankmemError:
    return RankmemError(Code.DENIED, "another site's page asked", "open the page itself")


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
