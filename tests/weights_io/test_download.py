"""Downloads from a real server that cuts, stalls, moves and lies."""

from __future__ import annotations

import hashlib
import random
import shutil
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costream.core.errors import ExitCode, ModelError, OutputError
from costream.weights_io.download import RetryPolicy, download
from kit.disk import full_disk
from kit.weight_server import Reply, WeightServer

CONTENT = random.Random(0).randbytes(50_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
QUICK = RetryPolicy(timeout_s=20.0, tries=4, pause_s=0.01)


class Kept:
    """Keeps what a watcher is told."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int | None]] = []
        self.reasons: list[str] = []

    def at(self, done: int, total: int | None) -> None:
        self.steps.append((done, total))

    def lost(self, reason: str, pause_s: float) -> None:
        self.reasons.append(reason)


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def fetch(
    server: WeightServer,
    target: Path,
    url: str | None = None,
    patience: RetryPolicy = QUICK,
    digest: tuple[str, str] = ("sha256", SHA256),
) -> Kept:
    kept = Kept()
    download(url or server.url(), target, kept, *digest, patience=patience)
    return kept


def check(target: Path) -> None:
    assert target.read_bytes() == CONTENT
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def test_a_file_arrives_completely_and_is_counted(tmp_path: Path) -> None:
    target = tmp_path / "new" / "net.pth"
    with WeightServer(CONTENT) as server:
        kept = fetch(server, target)
    check(target)
    done = [step[0] for step in kept.steps]
    assert done == sorted(done)
    assert kept.steps[0] == (0, len(CONTENT))
    assert kept.steps[-1] == (len(CONTENT), len(CONTENT))
    assert "Range" not in server.asked[0][1]


@settings(max_examples=25)
@given(
    cuts=st.lists(st.integers(0, len(CONTENT)), max_size=3),
    ranges=st.booleans(),
    dated=st.booleans(),
)
def test_wherever_it_is_cut_the_file_is_right(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], ranges: bool, dated: bool
) -> None:
    target = tmp_path_factory.mktemp("cut") / "net.pth"
    version = 'W/"1"' if dated else '"1"'  # a weak tag names no bytes: the date does
    replies = [Reply(cut=cut, ranges=ranges, version=version, dated=dated) for cut in (*cuts, None)]
    with WeightServer(CONTENT, *replies) as server:
        fetch(server, target)
    check(target)
    if ranges:
        assert server.sent == len(CONTENT)  # nothing came twice


@pytest.mark.parametrize("after", ["nothing", "an error", "another run"])
def test_a_version_of_its_own_starts_again(tmp_path: Path, after: str) -> None:
    target = tmp_path / "net.pth"
    old = Reply(cut=20_000, content=CONTENT[::-1], version='"old"')
    between = [] if after == "nothing" else [Reply(status=503)]
    patience = RetryPolicy(20.0, 1 if after == "another run" else 4, 0.01)
    with WeightServer(CONTENT, old, *between, Reply()) as server:
        while not target.exists():
            with suppress(ModelError):
                fetch(server, target, patience=patience)
    check(target)
    assert server.asked[-1][1]["If-Range"] == '"old"'


def test_without_a_version_it_starts_again(tmp_path: Path) -> None:
    cut = Reply(cut=20_000, version=None)
    with WeightServer(CONTENT, cut, Reply(version=None)) as server:
        fetch(server, tmp_path / "net.pth")
    check(tmp_path / "net.pth")
    assert "Range" not in server.asked[1][1]


def test_what_is_of_another_address_is_not_continued_from(tmp_path: Path) -> None:
    cut = Reply(cut=9_000)
    with (
        WeightServer(CONTENT[::-1], cut, Reply(status=404)) as other,
        pytest.raises(ModelError, match="404"),
    ):
        fetch(other, tmp_path / "net.pth")
    assert (tmp_path / "net.pth.part").stat().st_size == 9_000
    with WeightServer(CONTENT) as server:
        fetch(server, tmp_path / "net.pth")
    check(tmp_path / "net.pth")


def test_a_run_that_ended_before_the_renaming(tmp_path: Path) -> None:
    target = tmp_path / "net.pth"
    with WeightServer(CONTENT, Reply(cut=40_000), Reply(status=404), Reply()) as server:
        with pytest.raises(ModelError):
            fetch(server, target)
        with (tmp_path / "net.pth.part").open("ab") as file:
            file.write(CONTENT[40_000:])
        fetch(server, target)
        check(target)
        assert server.asked[-1][1]["Range"] == f"bytes={len(CONTENT)}-"
        target.unlink()
        # More than there is of it cannot be right.
        server.replies = [Reply(cut=40_000), Reply(status=404), Reply()]
        server.asked.clear()
        with pytest.raises(ModelError):
            fetch(server, target)
        (tmp_path / "net.pth.part").write_bytes(CONTENT + b"x")
        fetch(server, target)
    check(target)


@pytest.mark.parametrize(
    ("algorithm", "digest"), [("sha256", "0" * 64), ("sha256", "1234"), ("md5", "abcdef")]
)
def test_another_digest_deletes_the_file(tmp_path: Path, algorithm: str, digest: str) -> None:
    found = hashlib.new(algorithm, CONTENT).hexdigest()[: len(digest)]
    with WeightServer(CONTENT) as server:
        with pytest.raises(ModelError) as caught:
            fetch(server, tmp_path / "net.pth", digest=(algorithm, digest))
        assert f"begins with {found}, not {digest}: deleted" in str(caught.value)
        assert list(tmp_path.iterdir()) == []
        assert len(server.asked) == 1
        beginning = hashlib.new(algorithm, CONTENT).hexdigest()[:6]
        fetch(server, tmp_path / "net.pth", digest=(algorithm, beginning))
    check(tmp_path / "net.pth")


def test_redirects_are_followed_and_continue_where_it_was(tmp_path: Path) -> None:
    moved = Reply(status=302, location="/elsewhere/net.pth?key=1")
    with WeightServer(CONTENT, moved, Reply(cut=30_000), moved, Reply()) as server:
        fetch(server, tmp_path / "net.pth")
    check(tmp_path / "net.pth")
    assert [path for path, _ in server.asked] == ["/net.pth", "/elsewhere/net.pth?key=1"] * 2
    assert server.sent == len(CONTENT)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply(status=404), r"the server answers 404 \(Not Found\)"),
        (Reply(status=403), "answers 403"),
        (Reply(status=204, content=b""), "answers 204, not a file"),
        (Reply(status=302, location="ftp://127.0.0.1/x"), "not followed"),
        (Reply(status=302, location="/net.pth"), "answers 302"),
    ],
)
def test_what_will_not_change_is_not_tried_again(
    tmp_path: Path, reply: Reply, message: str
) -> None:
    with WeightServer(CONTENT, reply) as server:
        with pytest.raises(ModelError, match=message) as caught:
            fetch(server, tmp_path / "net.pth")
        assert len(server.asked) == 1 or reply.location == "/net.pth"
    assert caught.value.exit_code == ExitCode.MODEL
    assert server.url() in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_errors_that_pass_are_tried_again(tmp_path: Path) -> None:
    busy = Reply(status=429, headers={"Retry-After": "0"})
    with WeightServer(CONTENT, Reply(status=500), Reply(status=503), busy, Reply()) as server:
        kept = fetch(server, tmp_path / "net.pth")
    check(tmp_path / "net.pth")
    assert [reason.split()[3] for reason in kept.reasons] == ["500", "503", "429"]


def test_it_gives_up_where_nothing_new_comes(tmp_path: Path) -> None:
    dead = [Reply(cut=10_000), *[Reply(cut=0)] * 3, Reply()]
    with WeightServer(CONTENT, *dead) as server:
        with pytest.raises(ModelError, match=r"ended after 10000 of 50000 .*0\.0 MB are stored"):
            fetch(server, tmp_path / "net.pth")
        assert len(server.asked) == 4
        fetch(server, tmp_path / "net.pth")
    check(tmp_path / "net.pth")
    # A server that gives no ranges and always ends early brings nothing new, either.
    with WeightServer(CONTENT, Reply(cut=10_000, ranges=False)) as server:
        with pytest.raises(ModelError, match="cannot be fetched"):
            fetch(server, tmp_path / "other.pth")
        assert len(server.asked) == 4


def test_a_server_that_refuses_connections(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ModelError, match=r"refused.*check the network"):
        download(f"http://127.0.0.1:{port}/x", tmp_path / "x", Kept(), patience=QUICK)


def test_a_trickle_is_not_a_stall(tmp_path: Path) -> None:
    slow = Reply(pause_s=0.05)  # 2.5 s in all, each piece well within the time
    with WeightServer(CONTENT, slow) as server:
        kept = fetch(server, tmp_path / "net.pth", patience=RetryPolicy(1.5, 1, 0.0))
    check(tmp_path / "net.pth")
    assert len(kept.steps) > 20


def test_a_stall_is_left_and_continued_from(tmp_path: Path) -> None:
    stalled = Reply(cut=30_000, stall_s=30)
    with WeightServer(CONTENT, stalled, Reply()) as server:
        kept = fetch(server, tmp_path / "net.pth", patience=RetryPolicy(1.0, 4, 0.01))
    check(tmp_path / "net.pth")
    assert kept.reasons == ["timed out"]
    assert server.sent == len(CONTENT)


def test_an_unknown_length_is_none(tmp_path: Path) -> None:
    with WeightServer(CONTENT, Reply(length=False)) as server:
        kept = fetch(server, tmp_path / "net.pth")
    check(tmp_path / "net.pth")
    assert kept.steps[-1] == (len(CONTENT), None)


def test_proxies_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "http://weights.invalid/net.pth"
    with WeightServer(CONTENT) as server:
        with pytest.raises(ModelError, match="cannot be fetched"):
            fetch(server, tmp_path / "net.pth", url, RetryPolicy(5.0, 1, 0.0))
        monkeypatch.setenv("HTTP_PROXY", server.address)
        fetch(server, tmp_path / "net.pth", url)
        assert [path for path, _ in server.asked] == [url]
        check(tmp_path / "net.pth")
        monkeypatch.setenv("NO_PROXY", "weights.invalid")
        with pytest.raises(ModelError, match="cannot be fetched"):
            fetch(server, tmp_path / "other.pth", url, RetryPolicy(5.0, 1, 0.0))
        assert len(server.asked) == 1


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl, which makes the certificate")
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    key = ["-newkey", "rsa:2048", "-nodes", "-keyout", str(path), "-out", f"{path}.crt"]
    name = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    request = ["openssl", "req", "-x509", "-days", "2", *key, *name]
    subprocess.run(request, check=True, capture_output=True, timeout=60)
    path.write_bytes(path.read_bytes() + Path(f"{path}.crt").read_bytes())
    return path


def test_encrypted_connections(
    tmp_path: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_way = Reply(status=302, location="http://127.0.0.1:9/net.pth")
    with WeightServer(CONTENT, Reply(), open_way, certificate=certificate) as server:
        with pytest.raises(ModelError, match=r"certificate is not trusted .*SSL_CERT_FILE"):
            fetch(server, tmp_path / "net.pth")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        fetch(server, tmp_path / "net.pth")
        check(tmp_path / "net.pth")
        with pytest.raises(ModelError, match=r"redirect to http://.* not followed"):
            fetch(server, tmp_path / "other.pth")


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    message = r"file/net\.pth\.part: cannot be written \((File exists|Not a directory)"
    with WeightServer(CONTENT) as server, pytest.raises(OutputError, match=message):
        fetch(server, tmp_path / "file" / "net.pth")


def test_a_full_disk(tmp_path: Path) -> None:
    message = r"cannot be written \(File too large\)"
    with WeightServer(CONTENT) as server, full_disk(300), pytest.raises(OutputError, match=message):
        fetch(server, tmp_path / "net.pth")
    assert not (tmp_path / "net.pth").exists()


def test_stopped_in_the_middle_it_continues(tmp_path: Path) -> None:
    class Stopping(Kept):
        def at(self, done: int, total: int | None) -> None:
            if done > 20_000:
                raise KeyboardInterrupt

    target: Any = tmp_path / "net.pth"
    with WeightServer(CONTENT) as server:
        with pytest.raises(KeyboardInterrupt):
            download(server.url(), target, Stopping(), patience=QUICK)
        have = (tmp_path / "net.pth.part").stat().st_size
        assert have > 20_000
        fetch(server, target)
    assert server.asked[1][1]["Range"] == f"bytes={have}-"
    check(target)


def test_a_login_in_the_url_is_used_and_not_kept(tmp_path: Path) -> None:
    replies = (Reply(location="/moved.pth", status=302), Reply(cut=20_000), Reply())
    with WeightServer(CONTENT, *replies) as server:
        url = server.url("net.pth?token=hush").replace("://", "://me:p%40ss@")
        part = tmp_path / "net.pth.part.json"
        with pytest.raises(ModelError) as caught:
            fetch(server, tmp_path / "net.pth", url, RetryPolicy(tries=1))
        notes = part.read_text("utf-8") + str(caught.value)
        fetch(server, tmp_path / "net.pth", url)
    assert "p%40ss" not in notes
    assert "hush" not in notes
    assert {headers["Authorization"] for _, headers in server.asked} == {"Basic bWU6cEBzcw=="}
    check(tmp_path / "net.pth")


def test_a_login_is_not_shown_to_another_server(tmp_path: Path) -> None:
    other = WeightServer(CONTENT)
    with other, WeightServer(CONTENT, Reply(location=other.url(), status=302)) as server:
        fetch(server, tmp_path / "net.pth", server.url().replace("://", "://me:word@"))
    assert "Authorization" not in other.asked[0][1]


@pytest.mark.parametrize("length", [True, False])
def test_more_than_expected_is_refused(length: bool, tmp_path: Path) -> None:
    with WeightServer(b"a" * 3_000_000, Reply(length=length)) as server:
        with pytest.raises(ModelError, match=r"sends .* 1\.0 MB"):
            download(server.url(), tmp_path / "net.pth", Kept(), most=1_000_000)
        assert server.sent < 3_000_000
    assert list(tmp_path.iterdir()) == []
