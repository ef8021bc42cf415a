"""Logins in URLs of web servers."""

from __future__ import annotations

import base64
from urllib.parse import unquote_to_bytes, urlsplit


def split_login(url: str) -> tuple[str, str | None]:
    """Return a URL without its login, and the value of the header Authorization in its place.

    None: it has no login. ValueError if the URL is invalid.
    """
    parts = urlsplit(url)
    login, at, host = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    token = base64.b64encode(unquote_to_bytes(f"{user}:{password}")).decode()
    return parts._replace(netloc=host).geturl(), f"Basic {token}" if at else None
