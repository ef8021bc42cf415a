"""A real RTSP server for tests, in a process of its own, that can crash, hang and come back."""

from __future__ import annotations

import functools
import json
import signal
import subprocess
import threading
from pathlib import Path
from typing import Literal

import pytest

PYTHON = "/usr/bin/python3"  # gi is for the system's interpreter only
ELEMENTS = ("x264enc", "voaacenc", "rtph264pay", "rtpmp4gpay", "h264parse", "aacparse")
START_S = 30.0
PROGRAM = Path(__file__).with_name("gst_server.py")


@functools.cache
def available() -> bool:
    """Tell whether this machine has GStreamer with all that the server uses."""
    code = (
        "import sys, gi; gi.require_version('GstRtspServer', '1.0'); "
        "from gi.repository import Gst, GstRtspServer; Gst.init(None); "
        "sys.exit(not all(map(Gst.ElementFactory.find, sys.argv[1:])))"
    )
    try:
        done = subprocess.run([PYTHON, "-c", code, *ELEMENTS], capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


needs_rtsp = pytest.mark.skipif(
    not available(),
    reason="needs apt install python3-gi gir1.2-gst-rtsp-server-1.0 "
    "gstreamer1.0-plugins-{base,good,bad,ugly}",
)


def endless(size: tuple[int, int] = (160, 120), rate: int = 25, *, sound: bool = False) -> str:
    """Return the pipeline of a camera: a ball that moves, a keyframe a second, maybe a tone."""
    width, height = size
    pipeline = (
        f"videotestsrc is-live=true pattern=ball "
        f"! video/x-raw,width={width},height={height},framerate={rate}/1 "
        f"! x264enc tune=zerolatency speed-preset=ultrafast threads=1 key-int-max={rate} "
        f"! rtph264pay name=pay0 pt=96 config-interval=1"
    )
    if sound:
        pipeline += (
            " audiotestsrc is-live=true freq=440 ! audio/x-raw,rate=48000,channels=1 "
            "! voaacenc ! aacparse ! rtpmp4gpay name=pay1 pt=97"
        )
    return pipeline


def tone() -> str:
    """Return the pipeline of a feed that is sound only."""
    return (
        "audiotestsrc is-live=true freq=440 ! audio/x-raw,rate=48000,channels=1 "
        "! voaacenc ! aacparse ! rtpmp4gpay name=pay0 pt=97"
    )


def recording(path: Path) -> str:
    """Return the pipeline that plays the H.264 video of an MP4 file to each client, and ends."""
    return (
        f'filesrc location="{path}" ! qtdemux name=d d.video_0 ! queue '
        "! h264parse config-interval=-1 ! rtph264pay name=pay0 pt=96"
    )


class RtspServer:
    """A server of ``mounts`` (name -> pipeline), started as a context manager.

    After ``kill`` it can be started again, on the same port, with other mounts too. Should it
    crash of itself, as GStreamer's does at times where many clients come at once, then it comes
    up again, as cameras do.
    """

    def __init__(
        self,
        mounts: dict[str, str],
        *,
        login: tuple[str, str] | None = None,
        digest: bool = False,
        transport: Literal["tcp", "udp"] | None = None,
        port: int = 0,
    ) -> None:
        """``login``: user and password that clients need. ``transport``: the only one."""
        self.mounts = mounts
        self.port = port
        self._told = {"login": login, "digest": digest, "transport": transport}
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> RtspServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def url(self, name: str, login: str = "") -> str:
        """Return the URL of a mount; ``login``: "user:password@" as it stands in a URL."""
        return f"rtsp://{login}127.0.0.1:{self.port}/{name}"

    def start(self) -> None:
        """Start it and wait until clients can come."""
        told = json.dumps({**self._told, "port": self.port, "mounts": self.mounts})
        process = self._process = subprocess.Popen(
            [PYTHON, str(PROGRAM), told], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        ready = process.stdout.readline().split()
        assert ready[:1] == ["READY"], f"the server ended with {process.wait(START_S)}"
        self.port = int(ready[1])
        threading.Thread(target=self._keep_up, args=(process,), daemon=True).start()

    def _keep_up(self, process: subprocess.Popen[str]) -> None:
        process.wait()
        if self._process is process:  # nobody has killed it
            self.start()

    def kill(self) -> None:
        """Kill it, as if its machine had lost power, or had crashed."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(START_S)
            assert process.stdout is not None
            process.stdout.close()

    def hang(self) -> None:
        """Let it do nothing, with its connections open, until ``wake``."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
