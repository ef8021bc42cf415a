"""``costream models fetch hf:...`` and ``push``, with a hub on this machine."""

from __future__ import annotations

import hashlib
import http.server
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from costream.__main__ import main
from costream.core.errors import UsageError
from costream.weights_io.file import read_card, read_weights
from costream.weights_io.hub import read_address
from kit.http_server import Quiet, http_server
from kit.paths import RESEARCH, WEIGHTS
from kit.program import python

huggingface_hub = pytest.importorskip("huggingface_hub", reason="needs the extra 'hub'")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """Repositories of folders, as the hub serves them: their description, and their files."""

    def __init__(self) -> None:
        self.folders: dict[str, Path] = {}
        self.digests: dict[str, str] = {}  # instead of the true ones
        hub = self

        class Handler(Quiet, http.server.BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                hub.answer(self, body=False)

            def do_GET(self) -> None:
                hub.answer(self, body=True)

        self.handler = Handler
        self.address = ""  # where it is served

    def answer(self, request: http.server.BaseHTTPRequestHandler, *, body: bool) -> None:
        parts = request.path.partition("?")[0].strip("/").split("/")
        about = parts[:2] == ["api", "models"]
        folder = self.folders.get("/".join(parts[2:4] if about else parts[:2]))
        file = folder and folder / "/".join(parts[4:])
        if folder is None or not (about or (file and file.is_file())):
            request.send_response(404)
            request.send_header(
                "X-Error-Code", "RepoNotFound" if folder is None else "EntryNotFound"
            )
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        content = json.dumps(self.describe("/".join(parts[2:4]), folder)).encode() if about else b""
        content = content or (file.read_bytes() if file else b"")
        request.send_response(200)
        request.send_header("X-Repo-Commit", COMMIT)
        request.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        if body:
            request.wfile.write(content)

    def describe(self, name: str, folder: Path) -> dict[str, Any]:
        files = []
        for path in sorted(folder.iterdir()):
            digest = self.digests.get(path.name, hashlib.sha256(path.read_bytes()).hexdigest())
            lfs = {"size": path.stat().st_size, "sha256": digest, "pointerSize": 130}
            files.append({"rfilename": path.name, "size": path.stat().st_size, "lfs": lfs})
        readme = folder / "README.md"
        data = huggingface_hub.ModelCard.load(readme).data.to_dict() if readme.exists() else None
        return {"id": name, "sha": COMMIT, "siblings": files, "cardData": data, "tags": []}


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub without repositories."""
    made = Hub()
    with http_server(made.handler) as server:
        made.address = f"http://127.0.0.1:{server.server_port}"
        yield made


CALLS = """
import contextlib, io, json, sys
from costream.__main__ import main
told = []
for call in json.loads(sys.argv[1]):
    error = io.StringIO()
    with contextlib.redirect_stderr(error):
        code = main(["models", *call])
    told.append([code, error.getvalue()])
print(json.dumps(told))
"""


def called(hub: Hub, folder: Path, *calls: tuple[str, ...]) -> list[tuple[int, str]]:
    """Run ``costream models`` for a user whose hub this is; return exit codes and messages."""
    env = {"HF_ENDPOINT": hub.address, "HF_HOME": str(folder / "hub"), "NO_PROXY": "127.0.0.1"}
    env |= {"HF_HUB_DISABLE_XET": "1", "XDG_CACHE_HOME": str(folder / "cache")}
    done = python("-c", CALLS, json.dumps(calls), env=env)
    assert done.returncode == 0, done.stderr
    told: list[tuple[int, str]] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.slow
def test_a_model_that_is_pushed_and_fetched_is_the_same(hub: Hub, tmp_path: Path) -> None:
    hub.folders["ann/falls"] = tmp_path / "folder"
    pushed, asked, fetched, again, offline = called(
        hub,
        tmp_path,
        ("push", "falls", "-o", str(tmp_path / "folder")),
        ("fetch", "hf:ann/falls"),
        ("fetch", "hf:ann/falls", "--accept-licence"),
        ("fetch", "hf:ann/falls", "--offline"),
        ("fetch", "hf:ann/other", "--offline"),
    )
    assert [code for code, _ in (pushed, asked, fetched, again, offline)] == [0, 2, 0, 0, 2]
    assert "hf upload OWNER/falls" in pushed[1]
    assert "its licence is apache-2.0; accept it with --accept-licence" in asked[1]
    path = tmp_path / "cache" / "costream" / "weights" / "ann--falls.safetensors"
    assert path.read_bytes() == (WEIGHTS / "falls.safetensors").read_bytes()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert f"SHA-256: {digest} (as the hub states)" in fetched[1]
    assert "licence: apache-2.0 (class: free)" in fetched[1]
    assert f"revision {COMMIT[:12]}" in fetched[1]
    assert "already downloaded" in again[1]
    assert "but it is not downloaded" in offline[1]


@pytest.mark.slow
def test_what_is_wrong_with_a_repository_is_one_line(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    (tmp_path / "two").mkdir()
    for name in ("a", "b"):
        (tmp_path / "two" / f"{name}.safetensors").write_bytes(b"x")
    hub.folders |= {"ann/none": tmp_path / "none", "ann/two": tmp_path / "two"}
    hub.digests["a.safetensors"] = "0" * 64
    wrong = {
        "hf:ann/nobody": "there is no such repository",
        "hf:ann/none": "has no weight file",
        "hf:ann/two": "has 2 weight files (a.safetensors, b.safetensors)",
        "hf:ann/two/c.safetensors": "has no file 'c.safetensors'",
        "hf:ann/two/a.safetensors": "not that of the hub: deleted",
    }
    told = called(hub, tmp_path, *(("fetch", "--accept-licence", name) for name in wrong))
    for words, (code, message) in zip(wrong.values(), told, strict=True):
        assert code == 5
        assert words in message.splitlines()[-1]
    assert [message.count("\n") for _, message in told] == [1, 1, 1, 1, 3]
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    "text", ["hf:", "hf:ann", "hf:../x", "hf:ann/..", "hf:a b/c", "hf:ann/x/../y"]
)
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="not an address of the hub"):
        read_address(text)


def test_names_have_the_owner_the_file_and_the_revision() -> None:
    assert read_address("hf:ann/nanodet").name == "ann--nanodet"
    assert read_address("hf:ann/x/a/b.safetensors@v1").name == "ann--x--a--b--v1"


@pytest.mark.parametrize(
    ("name", "licence"), [("nanodet", "apache-2.0"), ("mn04", "mit"), ("cotrans", "other")]
)
def test_cards_pass_the_checks_of_the_hub(name: str, licence: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    assert main(["models", "push", name, "-o", str(folder)]) == 0
    card = huggingface_hub.ModelCard.load(folder / "README.md", ignore_metadata_errors=False)
    assert card.data.license == licence
    assert card.data.library_name == "costream"
    assert card.data.pipeline_tag in {"object-detection", "audio-classification"}
    assert card.text.strip().startswith(f"# {name}")
    own = WEIGHTS / f"{name}.safetensors"
    own = own if own.exists() else RESEARCH / own.name
    weights = read_weights(folder / own.name)  # complete, also of a file that shares tensors
    assert weights.sha256 == read_weights(own).sha256
    assert read_card(folder / own.name) == read_card(own)
