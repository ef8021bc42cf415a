"""Verification of server certificates, which FFmpeg does only on request."""

from __future__ import annotations

import os
import socket
import ssl
from urllib.parse import urlsplit

PORTS = {"https": 443, "rtsps": 322, "rtmps": 443}  # schemes with TLS
TIMEOUT_S = 5.0
# Usual places of the certificates of authorities, if Python knows none.
_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
INVALID = "its certificate is invalid ({}): trust another one with SSL_CERT_FILE=FILE"


def tls_options(verify: bool) -> dict[str, str]:
    """Return FFmpeg's TLS options; connections without TLS ignore them."""
    if not verify:
        return {}
    candidates = (ssl.get_default_verify_paths().cafile, *_BUNDLES)
    bundle = next((path for path in candidates if path and os.path.exists(path)), None)
    return {"tls_verify": "1"} | ({} if bundle is None else {"ca_file": bundle})


def certificate_problem(uri: str) -> str:
    """Return what is wrong with a server's certificate; "" if it is valid or unavailable."""
    try:
        parts = urlsplit(uri)
        host, port = parts.hostname, parts.port or PORTS.get(parts.scheme.lower())
        if host is None or port is None or parts.scheme.lower() not in PORTS:
            return ""
        with (
            socket.create_connection((host, port), TIMEOUT_S) as link,
            ssl.create_default_context().wrap_socket(link, server_hostname=host),
        ):
            return ""
    except ssl.SSLCertVerificationError as error:
        return INVALID.format(error.verify_message.rstrip("."))
    except (OSError, ValueError):
        return ""
