"""A real MQTT broker for tests (Debian's mosquitto), and a client that keeps what it hears."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

PROGRAM = shutil.which("mosquitto", path="/usr/sbin:/usr/bin:/usr/local/sbin")
try:
    from paho.mqtt import client as paho
    from paho.mqtt.enums import CallbackAPIVersion
except ImportError:
    paho = None  # type: ignore[assignment]

needs_broker = pytest.mark.skipif(
    PROGRAM is None or paho is None,
    reason="needs the extra mqtt, and apt install mosquitto",
)


class Broker:
    """A broker on a free port of the loopback; it may be killed and started again."""

    def __init__(self, folder: Path, *, login: tuple[str, str] | None = None, tls: bool = False):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        lines = [f"listener {self.port} 127.0.0.1", f"allow_anonymous {login is None}".lower()]
        if login is not None:
            passwords = folder / "passwords"
            passwords.touch(0o600)
            subprocess.run(["mosquitto_passwd", "-b", passwords, *login], check=True)
            lines.append(f"password_file {passwords}")
        if tls:
            self.certificate, key = folder / "certificate.pem", folder / "key.pem"
            what = [
                "-subj",
                "/CN=localhost",
                "-addext",
                "subjectAltName=DNS:localhost",
                "-days",
                "2",
            ]
            out = ["-nodes", "-keyout", key, "-out", self.certificate]
            made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", *what, *out]
            subprocess.run(made, check=True, capture_output=True)
            lines += [f"certfile {self.certificate}", f"keyfile {key}"]
        lines += ["user root"]  # no change of user: the folder of a test is private
        self._config = folder / "mosquitto.conf"
        self._config.write_text("\n".join(lines) + "\n")
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it, and wait until it listens."""
        assert PROGRAM is not None
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen([PROGRAM, "-c", str(self._config)], **quiet)  # type: ignore[call-overload]
        until_s = time.monotonic() + 60
        while time.monotonic() < until_s:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.02)
        raise TimeoutError("mosquitto does not listen")

    def kill(self) -> None:
        """Kill it; it loses what it had, also retained messages."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class Listener:
    """Keeps every message of a broker, in order; ``retained``: the newest state of each topic."""

    def __init__(self, broker: Broker) -> None:
        self.messages: list[tuple[str, bytes]] = []
        self._client = paho.Client(CallbackAPIVersion.VERSION2)
        self._client.reconnect_delay_set(1, 1)
        self._hears = threading.Event()
        self._client.on_connect = lambda client, *_: client.subscribe("#", 1)
        self._client.on_subscribe = lambda *_: self._hears.set()
        self._client.on_message = self._take
        self._client.connect_async("127.0.0.1", broker.port, 10)
        self._client.loop_start()

    def _take(self, _: Any, __: Any, message: Any) -> None:
        self.messages.append((message.topic, message.payload))

    def newest(self, topic: str) -> bytes | None:
        """Return the newest message of a topic."""
        found = [payload for name, payload in self.messages if name == topic]
        return found[-1] if found else None

    def all(self, topic: str) -> list[bytes]:
        """Return the messages of a topic, the oldest first."""
        return [payload for name, payload in self.messages if name == topic]

    def __enter__(self) -> Listener:
        """Wait until it hears: what is not retained is sent once."""
        assert self._hears.wait(60), "the broker does not answer"
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()
