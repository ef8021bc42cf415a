"""Feeds and files over TLS, with a certificate that nobody has signed."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from costream.core.errors import SourceError
from costream.sources.base import SourceOptions
from costream.sources.uris import open_source
from kit.http_server import QuietFiles, http_server
from kit.media import make_video
from kit.reading import Reader, contents, feed

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the certificate of this machine, its key, and what is served."""
    folder = tmp_path_factory.mktemp("tls")
    asked = (
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=door",
    )
    files = ("-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem"))
    names = ("-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run(["openssl", *asked, *files, *names], check=True, capture_output=True)
    parts = (folder / "key.pem", folder / "cert.pem")
    (folder / "both.pem").write_bytes(b"".join(part.read_bytes() for part in parts))
    make_video(folder / "a.ts", 50, keyframe_every=25)
    make_video(folder / "live.m3u8", 50, keyframe_every=25, fmt="hls")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[str]:
    """The address of the folder, without its scheme."""
    handler = functools.partial(QuietFiles, directory=str(folder))
    with http_server(handler, folder / "both.pem") as server:
        yield f"127.0.0.1:{server.server_port}"


def lost(url: str, **connecting: Any) -> str:
    """Return why a feed ends at its first attempt."""
    with Reader(feed(url, timeout_s=5.0, **connecting)) as reader:
        reader.join()
    (fault,) = reader.faults
    assert fault.fatal
    return fault.message


def test_certificates_of_feeds_are_not_verified_unless_asked_for(
    server: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"https://{server}/a.ts"
    with Reader(feed(url)) as reader:
        reader.more(10)
    told = lost(url, tls_verify=True)
    assert told.startswith("its certificate is invalid (self")
    assert "SSL_CERT_FILE" in told
    monkeypatch.setenv("SSL_CERT_FILE", str(folder / "cert.pem"))
    with Reader(feed(url, tls_verify=True)) as reader:
        reader.more(10)
    other = url.replace("127.0.0.1", "localhost")
    assert "certificate is invalid" in lost(other, tls_verify=True)


def test_a_playlist_is_refused_as_its_parts_cannot_be_verified(
    server: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(folder / "cert.pem"))
    assert "--tls-verify is not possible" in lost(f"https://{server}/live.m3u8", tls_verify=True)


def test_certificates_of_files_are_not_verified_unless_asked_for(
    server: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"https://{server}/a.ts"
    assert len(contents(open_source(url)).frames) == 50
    with pytest.raises(SourceError, match=r"its certificate is invalid \(self"):
        contents(open_source(url, SourceOptions(tls_verify=True)))
    monkeypatch.setenv("SSL_CERT_FILE", str(folder / "cert.pem"))
    assert len(contents(open_source(url, SourceOptions(tls_verify=True))).frames) == 50
