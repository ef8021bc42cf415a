"""The programs in samples/apps run, where the packages that they need are installed."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kit.media import excerpt
from kit.paths import ROOT, SAMPLES
from kit.program import environment, python

APPS = SAMPLES / "apps"
DEBIAN = "/usr/bin/python3"  # the interpreter for which GStreamer's bindings are packaged
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
BINDINGS = "import sys, gi; gi.require_version('GstApp', '1.0'); from gi.repository import GstApp;"
BINDINGS += f" sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"


def test_they_are_short() -> None:
    for path in APPS.glob("*.py"):
        assert len([line for line in path.read_text("utf-8").splitlines() if line]) <= 36, path.name


@pytest.mark.long
def test_the_notebook_shows_timeline_boxes_and_scores(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="needs nbclient and ipykernel")
    client = pytest.importorskip("nbclient", reason="needs nbclient and ipykernel")
    pytest.importorskip("ipykernel", reason="needs nbclient and ipykernel")
    pytest.importorskip("pandas", reason="needs pandas")
    (tmp_path / "samples").symlink_to(SAMPLES)
    book = nbformat.read(APPS / "first_steps.ipynb", 4)
    assert not any(cell.get("outputs") for cell in book.cells)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    client.NotebookClient(
        book, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    shown = [out for cell in book.cells for out in cell.get("outputs", ())]
    pages = [out["data"]["text/html"] for out in shown if "text/html" in out.get("data", {})]
    assert len(pages) == 4
    assert "<iframe" in pages[0]
    assert "<rect" in pages[1]
    assert "Siren" in json.dumps(shown)


@pytest.mark.long
def test_opencv_draws_boxes(tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2", reason="needs OpenCV")
    source, target = tmp_path / "room.mp4", tmp_path / "drawn.mp4"
    excerpt(SAMPLES / "room.mp4", source, 5.0, 6.0)
    done = python(APPS / "opencv.py", source, target)
    assert done.returncode == 0, done.stderr
    assert "person" in done.stdout
    film = cv2.VideoCapture(str(target))
    assert film.get(cv2.CAP_PROP_FRAME_COUNT) == 48


def has_bindings() -> bool:
    """Return whether Debian's Python has GStreamer, and the packages of this one fit it."""
    if shutil.which(DEBIAN) is None:
        return False
    return subprocess.run([DEBIAN, "-c", BINDINGS], capture_output=True).returncode == 0


@pytest.mark.long
@pytest.mark.skipif(not has_bindings(), reason=f"needs python3-gi of Python {VERSION}")
def test_gstreamer_hands_frames_over() -> None:
    pipeline = f"filesrc location={SAMPLES / 'room.mp4'} ! decodebin"
    env = environment()
    env["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), *(p for p in sys.path if p.endswith("site-packages"))]
    )
    command = [DEBIAN, str(APPS / "gstreamer.py"), pipeline]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "person" in done.stdout


@pytest.mark.long
def test_the_page_shows_what_is_in_a_recording() -> None:
    testing = pytest.importorskip("fastapi.testclient", reason="needs FastAPI and httpx")
    pytest.importorskip("python_multipart", reason="needs python-multipart")
    spec = importlib.util.spec_from_file_location("page", APPS / "page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    client = testing.TestClient(module.app)
    assert "<form" in client.get("/").text
    told = client.post("/", files={"file": ("../../x.txt", b"not a recording")})
    assert told.status_code == 400
    assert "Traceback" not in told.text
    seen = client.post("/", files={"file": ("moves.mp4", (SAMPLES / "corridor.mp4").read_bytes())})
    assert seen.status_code == 200
    assert "person" in seen.text
