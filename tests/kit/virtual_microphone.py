"""A microphone for tests: a sound server of their own whose source plays what they write.

The server is PulseAudio, with private folders, so that it meets no other one; PortAudio reaches
it through ALSA. Programs that record need ``environment``, before they import sounddevice.
"""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest

RATE = 48000
STEP = RATE // 50  # samples written at once

# More names for the same source, so that there is something to choose from.
DEVICES = "".join(
    f"""
pcm.{name} {{ type pulse device pmic hint {{ show on description "{name}" }} }}
"""
    for name in ("desk_left", "desk_right")
)

needs_microphone = pytest.mark.skipif(
    not all(map(shutil.which, ("pulseaudio", "pactl")))
    or ctypes.util.find_library("portaudio") is None
    or importlib.util.find_spec("sounddevice") is None,
    reason="needs apt install pulseaudio pulseaudio-utils libportaudio2 libasound2-plugins "
    "and pip install sounddevice",
)


def tone(seconds: float, frequency_hz: float = 440.0, amplitude: float = 0.125) -> np.ndarray:
    """Return int16 samples [N] at RATE."""
    wave = np.sin(2 * np.pi * frequency_hz * np.arange(round(seconds * RATE)) / RATE)
    return np.round(amplitude * 32768 * wave).astype("<i2")


def noise(seconds: float) -> np.ndarray:
    """Return int16 samples [N] at RATE of which no stretch is like another."""
    return np.random.default_rng(1).integers(-8000, 8000, round(seconds * RATE)).astype("<i2")


class VirtualMicrophone:
    """A sound server with one source, which hears what ``play`` is given, at the speed of sound.

    As a context manager it is started and plugged in, and ends what it started.
    """

    def __init__(self, folder: Path) -> None:
        self._fifo = folder / "mic.fifo"
        folders = {name: folder / name for name in ("run", "state", "config")}
        for path in (folder, *folders.values()):
            path.mkdir(mode=0o700, exist_ok=True)
        (folder / "config" / "alsa").mkdir()
        (folder / "config" / "alsa" / "asoundrc").write_text(DEVICES)
        self._socket = folders["run"] / "native"
        self.environment = {
            "XDG_RUNTIME_DIR": str(folder),
            "XDG_CONFIG_HOME": str(folders["config"]),
            "PULSE_RUNTIME_PATH": str(folders["run"]),
            "PULSE_STATE_PATH": str(folders["state"]),
            "PULSE_CONFIG_PATH": str(folders["config"]),
            "PULSE_COOKIE": str(folder / "cookie"),
            "PULSE_SERVER": f"unix:{self._socket}",
        }
        self._server: subprocess.Popen[bytes] | None = None
        self._module = ""
        self._player: threading.Thread | None = None
        self._ends = threading.Event()
        self._sounds = threading.Event()

    def __enter__(self) -> VirtualMicrophone:
        self.start_server()
        self.plug()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_server()

    def start_server(self) -> None:
        """Start a server without a source and wait until it answers."""
        self._server = subprocess.Popen(
            [
                *("pulseaudio", "-n", "--daemonize=no", "--exit-idle-time=-1", "--disallow-exit"),
                *("--use-pid-file=no", "--log-level=error", "--log-target=stderr"),
                *("-L", f"module-native-protocol-unix auth-anonymous=1 socket={self._socket}"),
            ],
            env=self._env,
        )
        until = time.monotonic() + 20
        while self._pactl("info").returncode:
            assert time.monotonic() < until, "the sound server does not answer"
            time.sleep(0.02)

    def kill_server(self) -> None:
        """Kill the server, as if it had crashed."""
        self._stop_playing()
        if self._server is not None:
            self._server.kill()
            self._server.wait(10)
        self._server = None
        self._fifo.unlink(missing_ok=True)

    def hang(self) -> None:
        """Let the server stop answering."""
        assert self._server is not None
        self._server.send_signal(signal.SIGSTOP)

    def plug(self) -> None:
        """Plug the microphone in. It hears nothing, which is to say that no samples come."""
        loaded = self._pactl(
            *("load-module", "module-pipe-source", "source_name=pmic", f"file={self._fifo}"),
            *("format=s16le", f"rate={RATE}", "channels=1"),
        )
        assert loaded.returncode == 0, loaded.stderr
        self._module = loaded.stdout.strip()

    def unplug(self) -> None:
        """Pull it out."""
        self._stop_playing()
        assert self._pactl("unload-module", self._module).returncode == 0

    def play(self, samples: np.ndarray) -> None:
        """Let it hear int16 samples [N] at RATE, from now on; after them no more come."""
        self._stop_playing()
        self._ends.clear()
        self._sounds.set()
        self._player = threading.Thread(target=self._write, args=(samples,), daemon=True)
        self._player.start()

    def stall(self) -> None:
        """Let no more samples come, until ``resume``."""
        self._sounds.clear()

    def resume(self) -> None:
        """Go on playing where it stopped."""
        self._sounds.set()

    def _write(self, samples: np.ndarray) -> None:
        # Not to wait for a server that was killed.
        pipe = os.open(self._fifo, os.O_WRONLY | os.O_NONBLOCK)
        due_s = time.monotonic()
        for at in range(0, len(samples), STEP):
            if not self._sounds.is_set():
                self._sounds.wait()
                due_s = time.monotonic()
            while not self._ends.wait(max(0.0, due_s - time.monotonic())):
                try:
                    os.write(pipe, samples[at : at + STEP].tobytes())  # all of it or nothing
                    break
                except BlockingIOError:
                    due_s = time.monotonic() + STEP / RATE
            due_s += STEP / RATE
        os.close(pipe)

    def _stop_playing(self) -> None:
        self._ends.set()
        self._sounds.set()
        if self._player is not None:
            self._player.join(10)
            self._player = None

    @property
    def _env(self) -> dict[str, str]:
        return {**os.environ, **self.environment}

    def _pactl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["pactl", *arguments],
            env=self._env,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
