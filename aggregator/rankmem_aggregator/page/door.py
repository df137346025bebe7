"""Who may ask: the host by which the page is reached, where a request comes from, and who sent it.

Stage: page, before every route. A browser shows a code that works once (``#code=…`` of the printed link,
which no log sees) and gets a cookie; a program sends a bearer token of ``--query-token-file``. Also on
loopback: other users of this host reach its ports. Only digests are kept. In uvicorn's event loop; nothing
here waits.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Final

from rankmem_aggregator.server.tokens import Right, Tokens
from rankmem_protos.channel import SCHEME
from rankmem_protos.errors import Code, RankmemError

CODE_BYTES: Final = 16
CODE_S: Final = 600.0
"""A code is good for so long, and once."""
COOKIE_BYTES: Final = 32
COOKIE_S: Final = 12 * 3600
COOKIES_MAX: Final = 64
"""Browsers let in at a time; the oldest is asked to come again."""
TRIES_PER_MINUTE: Final = 10
"""Wrong codes of a client."""
CLIENTS_MAX: Final = 1024
"""Whose wrong codes are counted; the oldest are forgotten."""


@dataclass(slots=True)
class Door:
    """The page's codes, cookies and tokens.

    Args:
        port: of the page, for the cookie's name: cookies of a host are shared by all of its ports.
        names: of the hosts by which the page may be reached, in lower case, without a port.
        tokens: of programs; none: only cookies let in.
        secure: the page is served with TLS.
    """

    port: int
    names: frozenset[str]
    tokens: Tokens
    secure: bool
    _codes: dict[bytes, float] = field(default_factory=dict)
    _cookies: dict[bytes, float] = field(default_factory=dict)
    _tries: dict[str, list[float]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def cookie_name(self) -> str:
        """The name of the cookie."""
        return f"rankmem-{self.port}"

    def new_code(self) -> str:
        """A code for one browser."""
        code = secrets.token_urlsafe(CODE_BYTES)
        with self._lock:
            self._codes[_digest(code)] = time.monotonic() + CODE_S
        return code

    def let_in(self, code: str, client: str) -> str:
        """The cookie for who shows this code, which is used up.

        Raises:
            RankmemError: DENIED for a wrong code; EXHAUSTED after too many of this client.
        """
        now_s = time.monotonic()
        with self._lock:
            tries = [at_s for at_s in self._tries.pop(client, []) if now_s - at_s < 60]
            if len(tries) >= TRIES_PER_MINUTE:
                self._tries[client] = tries
                raise RankmemError(
                    Code.EXHAUSTED, "too many wrong codes", "wait a minute, then try the link again"
                )
            shown, ends_s = _digest(code), None
            for known in list(self._codes):
                if self._codes[known] < now_s:
                    del self._codes[known]
                elif hmac.compare_digest(known, shown):
                    ends_s = self._codes.pop(known)
            if ends_s is None:
                self._tries[client] = [*tries, now_s]
                while len(self._tries) > CLIENTS_MAX:
                    del self._tries[next(iter(self._tries))]
                raise RankmemError(
                    Code.DENIED,
                    "this link was used before, or is older than ten minutes",
                    "start rankmem page again, or open the link that it printed last",
                )
            cookie = secrets.token_urlsafe(COOKIE_BYTES)
            self._cookies[_digest(cookie)] = now_s + COOKIE_S
            while len(self._cookies) > COOKIES_MAX:
                del self._cookies[next(iter(self._cookies))]
            return cookie

    def set_cookie(self, cookie: str) -> str:
        """The value of the header ``Set-Cookie``."""
        secure = "; Secure" if self.secure else ""
        return f"{self.cookie_name}={cookie}; Path=/; Max-Age={COOKIE_S}; HttpOnly; SameSite=Strict{secure}"

    def check_host(self, headers: Mapping[str, str]) -> None:
        """Refuses a request to another name: a foreign page that had its own name resolve to this address.

        Raises:
            RankmemError: DENIED.
        """
        host = headers.get("host", "").lower()
        name, _, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
        name = name or host
        if name.strip("[]") not in self.names or (port.isdigit() and int(port) != self.port):
            raise RankmemError(
                Code.DENIED,
                f"this page is not reached by the name {host[:80]!r}",
                "open the address that rankmem page printed, or allow the name: --page-name NAME",
            )

    def check_origin(self, headers: Mapping[str, str], method: str) -> None:
        """Refuses a request that another site's page has the browser send.

        Raises:
            RankmemError: DENIED.
        """
        if "authorization" in headers:  # no browser adds it by itself
            return
        site = headers.get("sec-fetch-site", "none" if method == "GET" else "")
        if site not in ("same-origin", "none" if method == "GET" else "same-origin"):
            raise RankmemError(Code.DENIED, "another site's page asked", "open the page itself")

    def check_caller(self, headers: Mapping[str, str]) -> None:
        """Refuses who has neither a cookie of this page nor a token.

        Raises:
            RankmemError: DENIED.
        """
        shown = headers.get("authorization", "")
        if shown.startswith(SCHEME) and Right.QUERY in self.tokens.rights_of(shown.removeprefix(SCHEME)):
            return
        cookie = self._cookie_of(headers)
        with self._lock:
            ends_s = self._cookies.get(_digest(cookie)) if cookie else None
        if ends_s is None or ends_s < time.monotonic():
            raise RankmemError(
                Code.DENIED,
                "this browser has not been let in, or its twelve hours are over",
                "open the link that rankmem page printed, or start it again for a new one",
            )

    def _cookie_of(self, headers: Mapping[str, str]) -> str:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self.cookie_name)
        except CookieError:
            return ""
        return found.value if found is not None else ""


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
