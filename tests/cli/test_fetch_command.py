"""``costream models fetch``, ``path`` and ``remove`` as processes, against a real server."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from costream.weights_io.file import read_card
from kit.foreign_actions import foreign
from kit.foreign_skeletons import Pyskl
from kit.foreign_sound import yamnet
from kit.program import COSTREAM, LIMIT_S, environment, start
from kit.runs import refused, run, wait_until
from kit.weight_server import PIECE, Reply, WeightServer


def toml(value: Any) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {toml(v)}' for key, v in value.items())}}}"
    return f"[{', '.join(map(toml, value))}]" if isinstance(value, list) else json.dumps(value)


class Place:
    """A user's cache, a list of checkpoints, and the program between them."""

    def __init__(self, folder: Path) -> None:
        self.home, self.table = folder / "home", folder / "list.toml"
        base = {"win32": ("costream", "cache"), "darwin": ("Library", "Caches", "costream")}
        self.cache = self.home.joinpath(*base.get(sys.platform, ("costream",)))
        self.weights, self.downloads = self.cache / "weights", self.cache / "downloads"
        folders = dict.fromkeys(("XDG_CACHE_HOME", "LOCALAPPDATA", "HOME"), str(self.home))
        proxies = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY")
        self.env = {**folders, **dict.fromkeys(proxies, "")}

    def write(self, name: str, url: str, *, append: bool = False, **more: Any) -> None:
        """Put an entry into the list; ``more`` are values as JSON writes them, or tables."""
        entry = {"url": url, "megabytes": 1, "licence": "MIT", "source": "a test", **more}
        lines = [f"[{name}]"]
        for key, value in entry.items():
            lines.append(f"{key} = {toml(value)}")
        with self.table.open("a" if append else "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")

    def fetch(self, *args: object, **more: Any) -> subprocess.CompletedProcess[str]:
        return self.models("fetch", "--list", self.table, *args, **more)

    def models(self, *args: object, **more: Any) -> subprocess.CompletedProcess[str]:
        return run("models", *args, env=self.env, cwd=self.table.parent, **more)

    def refused(self, code: int, words: str, *args: object, **env: str) -> str:
        call = ("models", "fetch", "--list", self.table, *args)
        return refused(code, words, *call, env={**self.env, **env}, cwd=self.table.parent)

    def start(self) -> subprocess.Popen[bytes]:
        """Start to fetch what the list calls "part"."""
        args = ("models", "fetch", "--list", self.table, "part", "--accept-licence")
        return start(*args, env=environment(self.env))

    def left(self) -> list[str]:
        files = self.downloads.rglob("*") if self.downloads.exists() else ()
        return sorted(p.name for p in files if p.is_file() and p.suffix != ".lock")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "home").mkdir()
    return Place(tmp_path)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return foreign(tmp_path_factory.mktemp("checkpoint")).read_bytes()


def test_fetched_imported_found_and_removed(place: Place, checkpoint: bytes) -> None:
    sha256 = hashlib.sha256(checkpoint).hexdigest()
    with WeightServer(checkpoint, Reply(cut=2000), Reply()) as server:
        more = {"import": {"labels": "thumos14"}, "sha256": sha256}
        place.write("kitchen", server.url(), **more)
        done = place.fetch("kitchen", "--accept-licence")
        file = place.weights / "kitchen.safetensors"
        assert done.stdout == f"{file}\n"
        assert f"kitchen: about 1 MB from {server.url()}" in done.stderr
        assert "trying again in 1 s" in done.stderr
        assert server.sent == len(checkpoint)
        card = read_card(file)
        assert (card.name, card.licence, card.trained_on) == ("kitchen", "MIT", "a test")
        assert place.left() == []  # the checkpoint is not needed any more

        again = place.fetch("kitchen", "--offline")
        assert (again.stdout, again.stderr) == (f"{file}\n", "kitchen: already downloaded\n")
        assert len(server.asked) == 2
    listed = json.loads(place.fetch("--json").stdout)
    assert [(e["name"], e["path"]) for e in listed] == [("kitchen", str(file))]
    assert place.models("path", "kitchen").stdout == f"{file}\n"

    done = place.models("remove", "kitchen", code=2)
    assert "would be deleted; confirm with --yes" in done.stderr
    assert file.exists()
    assert place.models("remove", "kitchen", "--yes").stderr == f"deleted {file}\n"
    assert not file.exists()
    done = place.models("remove", "kitchen", "--yes", code=5)
    assert "unknown model 'kitchen'" in done.stderr


def test_streams_of_several_files_become_one_model(place: Place) -> None:
    torch.save({"state_dict": Pyskl(plus=True).w}, place.home / "net.pth")
    content = (place.home / "net.pth").read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    with WeightServer(content) as server:
        also = {"url": server.url("net_bone.pth"), "sha256": sha256}
        place.write("two", server.url("net_joint.pth"), **{"import": {}}, also=[also])
        done = place.fetch("two", "--accept-licence")
        assert len(server.asked) == 2
        wrong = {**also, "sha256": "0" * 64}
        place.write("half", server.url("net_joint.pth"), **{"import": {}}, also=[wrong])
        done_badly = place.fetch("half", "--accept-licence", code=5)
        assert "net_bone.pth: the SHA256 of the download begins with" in done_badly.stderr
        assert place.left() == ["net_joint.pth"]
    card = read_card(Path(done.stdout.strip()))
    assert card.architecture == "skeleton-ensemble"
    assert card.frontend_arguments["streams"] == ["joint", "bone"]
    assert json.loads(place.fetch("--json").stdout)[0]["also"][0]["url"] == wrong["url"]


def test_weights_that_do_not_hear_what_they_should_are_refused(place: Place) -> None:
    tensors = yamnet(20)
    tensors["classifier.bias"][7] += 99
    torch.save(tensors, place.home / "small.pth")
    with WeightServer((place.home / "small.pth").read_bytes()) as server:
        place.write("right", server.url(), **{"import": {}}, check={"silence": "class 7"})
        tensors["classifier.bias"][7] -= 199
        place.write("wrong", server.url(), append=True, **{"import": {}}, check={"sine": "class 7"})
        place.fetch("right", "--accept-licence")
        torch.save(tensors, place.home / "small.pth")
        server.content = (place.home / "small.pth").read_bytes()
        done = place.fetch("wrong", "--accept-licence", code=5)
    assert "wrong: " in done.stderr
    assert "is not the published network, or was changed: it recognises sine as" in done.stderr
    assert ", not as 'class 7'" in done.stderr
    assert [file.name for file in place.weights.glob("*")] == ["right.safetensors"]


def test_a_part_is_kept_as_it_is(place: Place, checkpoint: bytes) -> None:
    with WeightServer(checkpoint) as server:
        place.write("vggish", server.url("vggish-1.pth"), note="goes beside another")
        done = place.fetch("vggish", "--accept-license")
    file = place.downloads / "vggish" / "vggish-1.pth"
    assert done.stdout == f"{file}\n"
    assert done.stderr.endswith("vggish: goes beside another\n")
    assert file.read_bytes() == checkpoint
    assert place.models("remove", "vggish", "-y").stderr == f"deleted {file.parent}\n"


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
@pytest.mark.parametrize("number", ["SIGKILL", "SIGINT", "SIGTERM"])
def test_a_download_that_is_ended_continues(place: Place, checkpoint: bytes, number: str) -> None:
    content = checkpoint * 20
    with WeightServer(content, Reply(pause_s=0.05), Reply()) as server:
        place.write("part", server.url())
        process = place.start()
        part = place.downloads / "part" / "net.pth.part"
        wait_until(lambda: part.exists() and part.stat().st_size > 3 * PIECE, process)
        process.send_signal(getattr(signal, number))
        _, said = process.communicate(timeout=LIMIT_S)
        code = {"SIGKILL": -signal.SIGKILL, "SIGINT": 130, "SIGTERM": 143}[number]
        assert process.returncode == code, said
        if number != "SIGKILL":
            assert said.endswith(b"part: stopped; repeat the command to resume\n")
        have = part.stat().st_size
        assert have < len(content)
        place.fetch("part", "--accept-licence")
        assert server.asked[1][1]["Range"] == f"bytes={have}-"
    assert (place.downloads / "part" / "net.pth").read_bytes() == content
    assert place.left() == ["net.pth"]


def test_two_at_once(place: Place, checkpoint: bytes) -> None:
    with WeightServer(checkpoint, Reply(stall_s=60, cut=2000)) as server:
        place.write("part", server.url())
        first = place.start()
        try:
            wait_until(lambda: server.asked, first)
            done = place.fetch("part", "--accept-licence", code=5)
            assert "net.pth: is being downloaded by another process" in done.stderr
        finally:
            first.kill()
            first.communicate(timeout=LIMIT_S)


def test_the_licence_has_to_be_accepted(place: Place, checkpoint: bytes) -> None:
    with WeightServer(checkpoint) as server:
        place.write("part", server.url())
        place.write("free", server.url(), append=True, licence="NOASSERTION")
        for name, licence in (("part", "its licence is MIT"), ("free", "its authors state no lic")):
            said = place.refused(2, f"costream: {name} (a test): {licence}", name)
            assert said.endswith("; accept it with --accept-licence\n")
        assert server.asked == []


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
@pytest.mark.parametrize("answer", ["n", "y"])
def test_on_a_terminal_it_asks(place: Place, checkpoint: bytes, answer: str) -> None:
    import pty

    with WeightServer(checkpoint) as server:
        place.write("part", server.url())
        ours, terminal = pty.openpty()
        try:
            args = ["models", "fetch", "--list", str(place.table), "part"]
            process = subprocess.Popen(
                [*COSTREAM, *args],
                stdin=terminal,
                stdout=subprocess.PIPE,
                stderr=terminal,
                env=environment(place.env),
            )
            os.close(terminal)
            shown = b""
            while b"[y/N]" not in shown:
                shown += os.read(ours, 1000)
            assert b"part (a test): its licence is MIT. Fetch 1 MB and accept that?" in shown
            os.write(ours, f"{answer}\n".encode())
            out, _ = process.communicate(timeout=LIMIT_S)
        finally:
            os.close(ours)
    file = place.downloads / "part" / "net.pth"
    if answer == "y":
        assert (process.returncode, out) == (0, f"{file}\n".encode())
    else:
        assert (process.returncode, out) == (2, b"")
        assert not place.downloads.exists()


@pytest.mark.parametrize("way", ["flag", "variable"])
def test_offline_asks_nobody(place: Place, checkpoint: bytes, way: str) -> None:
    with WeightServer(checkpoint) as server:
        place.write("part", server.url())
        flags = ["--offline"] if way == "flag" else []
        env = {} if way == "flag" else {"COSTREAM_OFFLINE": "1"}
        words = "--offline, but part is not downloaded\n"
        place.refused(2, words, "part", "--accept-licence", *flags, **env)
        assert server.asked == []
    assert not place.cache.exists()


def test_what_is_not_a_checkpoint_is_kept(place: Place) -> None:
    content = b"<html>Please log in</html>"
    with WeightServer(content) as server:
        place.write("page", server.url(), **{"import": {"labels": "thumos14"}})
        file = place.downloads / "page" / "net.pth"
        for flag in ("--accept-licence", "--offline"):  # it is not fetched again
            again = place.fetch("page", flag, code=5)
            assert again.stdout == ""
            assert "page: cannot be imported (" in again.stderr
            assert str(file) in again.stderr
            assert "the download is kept; costream models remove page deletes it" in again.stderr
        assert len(server.asked) == 1
    assert file.read_bytes() == content
    assert not place.weights.exists()
    place.models("remove", "page", "--yes")
    assert place.left() == []


def test_a_wrong_digest_leaves_nothing(place: Place, checkpoint: bytes) -> None:
    with WeightServer(checkpoint) as server:
        place.write("part", server.url(), sha256="0" * 64)
        done = place.fetch("part", "--accept-licence", code=5)
    assert done.stdout == ""
    assert "deleted; fetch it again" in done.stderr.splitlines()[-1]
    assert place.left() == []


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["prat"], 2, "no published checkpoint 'prat'; did you mean part?"),
        (["zebra"], 2, "no published checkpoint 'zebra'; known are part, page"),
        (
            ["page", "--accept-licence"],
            2,
            "page must be downloaded manually; open https://host/folder in a browser, save x.pth,"
            " then: costream models import x.pth --name page --config labels=coco",
        ),
    ],
)
def test_errors_are_one_line(place: Place, args: list[str], code: int, message: str) -> None:
    place.write("part", "http://127.0.0.1:9/x.pth")
    page = {"by_hand": "x.pth", "import": {"labels": "coco"}}
    place.write("page", "https://host/folder", append=True, **page)
    place.refused(code, message, *args)
    place.table.write_text("[part", "utf-8")
    place.refused(5, f"{place.table}: not valid TOML", *args)


def test_the_lists(place: Place) -> None:
    done = place.models("fetch", "--all")
    head, *lines = done.stdout.splitlines()
    assert head.split()[:5] == ["NAME", "MB", "LICENCE", "CLASS", "FETCHED"]
    by_name = {line.split()[0]: line.split()[1:5] for line in lines}
    assert by_name["vitdet-b-coco"] == ["444", "CC-BY-SA-3.0", "free", "no"]
    assert by_name["stgcn-ntu60"] == ["13", "Apache-2.0", "research", "no"]
    assert "unknown" in by_name["eventful-vid"]
    models = {e["name"]: e for e in json.loads(place.models("list", "--json").stdout)}
    assert models["vitdet-b-coco"]["origin"] == "published"
    assert models["vitdet-b-coco"]["licence_class"] == models["mn04"]["licence_class"] == "free"
    assert models["miniroad"]["licence_class"] is None
    assert "vggish" not in models  # no model by itself
    for name, message in (
        ("vitdet-b-coco", "no weights for vitdet-b-coco here; costream models fetch vitdet-b-coco"),
        ("vggish", "vggish is not downloaded; costream models fetch vggish"),
    ):
        done = place.models("path", name, code=5)
        assert (done.stdout, done.stderr) == ("", f"costream: {message}\n")
    done = place.models("remove", "cooadtr", "--yes", code=2)
    assert "is not in the user cache; only what was fetched or imported" in done.stderr
