"""Who may talk to the server: this machine only by default, with a token otherwise.

A page of another site can make a browser send requests to 127.0.0.1, also under a name of its own that it
points there (DNS rebinding). So the Host header must be one we serve, and a foreign Origin is refused.
"""

import hmac
import secrets
from urllib.parse import urlsplit

from flask import Flask, Response, redirect, request

COOKIE = "megascope_token"
LOCAL = ("127.0.0.1", "localhost", "::1")


def is_local(host: str) -> bool:
    """Whether `host` is an address that only this machine reaches."""
    return host.strip("[]") in LOCAL


def new_token() -> str:
    """256 random bits as URL-safe text."""
    return secrets.token_urlsafe(32)


def same(given: str | None, token: str) -> bool:
    """Whether the tokens are equal, in time that does not depend on where they differ."""
    return given is not None and hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())


def hostname(header: str) -> str:
    """The host of a Host header without its port; "" if it is malformed."""
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


def guard(server: Flask, host: str, token: str | None) -> None:
    """Refuse what should not reach the dashboard, and set headers that limit what a page may do.

    Args:
        server: the Flask application behind Dash.
        host: the address it listens on.
        token: required from everybody if not None.
    """
    allowed = {*LOCAL, host.strip("[]").lower()}

    @server.before_request
    def check() -> Response | tuple[str, int] | None:
        # With a token the name under which we are reached is free: a rebinding page has no cookie of ours.
        if token is None and hostname(request.host) not in allowed:
            return "This dashboard answers to 127.0.0.1 and localhost only.\n", 403
        origin = request.headers.get("Origin")
        if origin and urlsplit(origin).netloc != request.host:
            return "Requests from other sites are refused.\n", 403
        if token is None:
            return None
        if same(request.cookies.get(COOKIE), token):
            return None
        if same(request.args.get("token"), token):
            answer = redirect(request.path)
            answer.set_cookie(COOKIE, token, httponly=True, samesite="Strict")
            return answer  # type: ignore[return-value]
        return "Open the address with ?token=... that the server printed.\n", 401

    @server.after_request
    def limit(response: Response) -> Response:
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["X-Frame-Options"] = "DENY"
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["Content-Security-Policy"] = policy(server.config.get("SCRIPT_HASHES", []))
        return response


def policy(script_hashes: list[str]) -> str:
    """Content security policy: nothing from elsewhere, no inline scripts but the hashed ones of Dash."""
    scripts = " ".join(["'self'", *script_hashes])
    return (
        f"default-src 'self'; script-src {scripts}; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; font-src 'self' data:; object-src 'none'; base-uri 'self'; "
        "frame-ancestors 'none'; form-action 'self'"
    )
