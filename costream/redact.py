"""Removal of credentials from URLs, for every message, record and file name."""

from __future__ import annotations

import re

# user:password@ of a URL. The password may itself hold '@' and '/', so the user-info part runs
# to the last '@' that is still followed by something host-like before whitespace or a quote.
_USERINFO = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)[^\s'\"<>]*@(?=[^\s'\"<>@]*)")
_SECRET_QUERY = re.compile(
    r"(?P<key>[?&](?:[\w.-]*(?:pass(?:word|wd)?|pwd|token|secret|key|auth|signature|sig)"
    r"[\w.-]*)=)[^&\s'\"#]*",
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """Return ``text`` with user names, passwords and secret query values of URLs replaced.

    ``rtsp://user:p@ss@host/x?token=1`` becomes ``rtsp://***@host/x?token=***``.
    """
    text = _USERINFO.sub(r"\g<scheme>***@", text)
    return _SECRET_QUERY.sub(r"\g<key>***", text)
