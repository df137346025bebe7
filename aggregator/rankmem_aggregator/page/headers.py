"""The headers of every response, each with its reason.

Stage: page, the outermost middleware. They let the page load and ask from its own origin, and nothing else.
"""

from __future__ import annotations

from typing import Final

CONTENT_SECURITY_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",  # pictures that the page makes of its own canvases
        "connect-src 'self'",
        "font-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        # A name from a recording can never become markup: every HTML sink throws.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)

SECURITY_HEADERS: Final = (
    ("content-security-policy", CONTENT_SECURITY_POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),  # a link has names of sessions in it
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
)


def encoded(headers: tuple[tuple[str, str], ...]) -> list[tuple[bytes, bytes]]:
    """The headers as ASGI has them."""
    return [(name.encode(), value.encode()) for name, value in headers]
