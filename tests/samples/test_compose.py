"""The container and its neighbours: the lines of their files are run in empty roots."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.broker import needs_broker
from kit.clean_root import CleanRoots, needs_roots
from kit.media import excerpt
from kit.paths import ROOT, SAMPLES, WEIGHTS
from kit.runs import records, wait_until

FOLDER = SAMPLES / "compose"


def steps() -> dict[str, str]:
    """The last instruction of each kind in the Dockerfile, on one line."""
    text = (FOLDER / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    return dict(re.findall(r"^([A-Z]+) +(.+)$", text, re.MULTILINE))


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((FOLDER / "compose.yaml").read_text("utf-8"))["services"]


def test_what_the_files_name_is_there(services: dict[str, Any]) -> None:
    build = services["watch"]["build"]
    assert (FOLDER / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).samefile(FOLDER / "Dockerfile")
    mounts = [m for service in services.values() for m in service.get("volumes", ())]
    assert all((FOLDER / m.split(":")[0]).exists() for m in mounts if m.startswith("."))
    assert set(services["watch"]["depends_on"]) <= services.keys()
    assert steps()["USER"] == "costream"
    assert json.loads(steps()["ENTRYPOINT"]) == ["costream"]
    assert json.loads(steps()["CMD"])[0] == "watch"


# What an instruction may begin with, and what has to be so of its words (Docker's reference).
KNOWN = {"FROM", "COPY", "RUN", "USER", "WORKDIR", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"}


def instructions() -> list[tuple[str, str]]:
    """All instructions of the Dockerfile in order, each on one line."""
    lines = (FOLDER / "Dockerfile").read_text("utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#")).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line]  # type: ignore[misc]


def test_the_dockerfile_keeps_to_the_rules() -> None:
    """Those of linters that matter here: known words, pinned bases, lists, no root, no caches."""
    given = instructions()
    assert {word for word, _ in given} <= KNOWN
    assert given[0][0] == "FROM"
    stages = [rest.split() for word, rest in given if word == "FROM"]
    assert all(re.fullmatch(r"[a-z]+:[0-9.]+-slim", stage[0]) for stage in stages)
    named = {stage[2] for stage in stages if len(stage) == 3 and stage[1] == "AS"}
    for word, rest in given:
        words = rest.split()
        if word in ("ENTRYPOINT", "CMD"):
            assert all(isinstance(one, str) for one in json.loads(rest))
        if word == "COPY":
            sources = [w.partition("=")[2] for w in words if w.startswith("--from=")]
            assert set(sources) <= named
            assert words[-1].startswith("/")
        if word == "WORKDIR":
            assert rest.startswith("/")
        if word == "RUN" and "pip" in words:
            assert "--no-cache-dir" in words
    order = [word for word, _ in given]
    last = len(order) - order[::-1].index("FROM")
    assert order[last:].index("USER") < order[last:].index("ENTRYPOINT")
    assert [order.count(w) for w in ("ENTRYPOINT", "CMD", "HEALTHCHECK")] == [1, 1, 1]
    users = [rest for word, rest in given if word == "USER"]
    assert users
    assert "root" not in users


METRICS = (
    "import urllib.request as u; print(u.urlopen('http://127.0.0.2:9100/metrics').read().decode())"
)
HEARD = """
from paho.mqtt import subscribe
print(subscribe.simple("costream/room/available", hostname="127.0.0.2").payload.decode())
"""
CAMERA = """
import sys, time
from pathlib import Path
from kit.rtsp_camera import camera
with camera(Path({file!r}), port=8554) as url:
    print(url, flush=True)
    time.sleep(3600)
"""


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CleanRoots]:
    """The image: all instructions of the Dockerfile, in a root for each of its stages."""
    roots = CleanRoots(tmp_path_factory.mktemp("roots"), "build", "image", "broker")
    try:
        build_image(roots)
        yield roots
    finally:
        roots.close()


def build_image(roots: CleanRoots) -> None:
    stages = iter(("build", "image"))
    for word, rest in instructions():
        if word == "FROM":
            stage = next(stages)
        elif word == "COPY":
            *options, source, target = rest.split()
            outside = roots.folder / "build" / source[1:] if options else ROOT / source
            left_out = (FOLDER / "Dockerfile.dockerignore").read_text("utf-8").split()
            ignored = [line.removeprefix("**/").rpartition("/")[2] for line in left_out]
            place = roots.folder / stage / target[1:]
            shutil.copytree(outside, place, ignore=shutil.ignore_patterns(*ignored))
        elif word == "RUN":
            roots.run(stage, "sh", "-c", rest)


@pytest.mark.long
@needs_roots
@needs_broker
def test_the_image_is_built_and_its_services_run(
    services: dict[str, Any], roots: CleanRoots, tmp_path: Path
) -> None:
    given = steps()
    user, folder, entry = given["USER"], given["WORKDIR"], json.loads(given["ENTRYPOINT"])
    image = roots.folder / "image"
    how: dict[str, Any] = {"user": user, "cwd": folder}
    listed = roots.run("image", *entry, "models", "list", "--json", **how)
    found = {
        e["name"] for e in json.loads(listed) if e["origin"] in ("shipped", "research") if e["path"]
    }
    assert found == {path.stem for path in WEIGHTS.glob("*.safetensors")}

    hosts = "127.0.0.1 localhost " + " ".join(services)
    for root in ("image", "broker"):
        (roots.folder / root / "etc" / "hosts").write_text(f"{hosts}\n")
    # The file is part of the image of the broker, which is not built here.
    (roots.folder / "broker" / "mosquitto-no-auth.conf").write_text(
        "listener 1883\nallow_anonymous true\n"
    )
    watch = services["watch"]
    (mount,) = [each.split(":") for each in watch["volumes"] if each.startswith("./")]
    (image / mount[1][1:]).parent.mkdir()
    shutil.copy(FOLDER / mount[0], image / mount[1][1:])
    film = excerpt(SAMPLES / "room.mp4", tmp_path / "room.ts", 3, 20, b_frames=0)
    children = [
        roots.start("broker", *shlex.split(services["broker"]["command"])),
        roots.beside(CAMERA.format(file=str(film))),
    ]
    assert children[1].stdout is not None
    assert children[1].stdout.readline() == "rtsp://127.0.0.1:8554/live\n"
    child = roots.start("image", *entry, *shlex.split(watch["command"]), **how)
    check = given["HEALTHCHECK"].split(" CMD ")[1]

    def is_healthy() -> bool:
        done = roots.start("image", "sh", "-c", check, **how)
        done.communicate(timeout=60)
        return done.returncode == 0

    wait_until(is_healthy, child)
    port = given["EXPOSE"]
    assert watch["ports"] == [f"127.0.0.1:{n}:{n}" for n in (port, 8080)]
    assert "costream_feed_steps_total" in roots.answer(METRICS)  # not on the loopback address alone
    wait_until(lambda: roots.answer(HEARD) == "online\n", child)
    wait_until(lambda: list((image / "data" / "pictures").glob("*.jpg")), child)
    assert (image / "data" / "events.sqlite").exists()
    (inside,) = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text("ascii").split()
    os.kill(int(inside), signal.SIGTERM)  # as a container is stopped
    _, err = child.communicate(timeout=60)
    assert child.returncode == 143, err
    header, *rest = records(image / "data" / "log" / "room.jsonl")
    assert header["model"] == "nanodet"
    assert header["options"]["places"]
    assert any(record["type"] == "alert" for record in rest)
    assert (image / "data").stat().st_uid == 1000


@pytest.mark.slow
@needs_roots
def test_the_command_of_the_image_alone_runs(roots: CleanRoots) -> None:
    given = steps()
    data = roots.folder / "image" / given["WORKDIR"][1:]
    clip = excerpt(SAMPLES / "room.mp4", data / "room.mp4", 0, 4)
    (data / "feeds.toml").write_text(f'[[feed]]\nname = "door"\nurl = "{clip.name}"\n')
    words = (*json.loads(given["ENTRYPOINT"]), *json.loads(given["CMD"]), "--realtime")
    roots.run("image", *words, user=given["USER"], cwd=given["WORKDIR"])
    summary = records(data / "log" / "door.jsonl")[-1]
    assert (summary["type"], summary["complete"]) == ("summary", True)


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="needs ffmpeg")
def test_the_camera_plays_the_sample(services: dict[str, Any], tmp_path: Path) -> None:
    line = services["camera"]["environment"]["MTX_PATHS_ROOM_RUNONINIT"]
    out = tmp_path / "out.ts"
    line = line.replace("/samples/room.mp4", str(SAMPLES / "room.mp4"))
    line = line.replace("-f rtsp rtsp://localhost:8554/room", f"-t 0.5 -f mpegts {out}")
    subprocess.run(["sh", "-c", line], check=True, capture_output=True, timeout=60)
    assert out.stat().st_size > 1000
