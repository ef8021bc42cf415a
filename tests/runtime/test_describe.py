"""--describe: a server that speaks the format gets the picture of an alert, and nothing else."""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from costream.core.errors import OutputError, UsageError
from costream.core.records import Alert, AlertNote, VideoFrame
from costream.runtime.alerts.actions import AlertEvent
from costream.runtime.alerts.alerts import Alerts, read_options
from costream.runtime.alerts.describe import KEY, LONGEST, DescribePicture
from costream.runtime.alerts.rules import RuleLabels
from costream.runtime.alerts.snapshots import AlertPicture, Scene
from kit.runs import wait_until

SECRET = "sk-hunter2"
CLASSES = RuleLabels(("dog", "none"), (0.5, 0.5), frozenset())


class Server(ThreadingHTTPServer):
    """Answers as OpenAI's API reference says, or with ``status`` or ``body``."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.status, self.body = 200, b""
        self.text = "A dog\nlies on the sofa. "

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        data = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, dict(self.headers), data))
        message = {"role": "assistant", "content": self.server.text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        answer = {"id": "x", "object": "chat.completion", "created": 1, "choices": [choice]}
        body = self.server.body or json.dumps(answer).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    served = Server()
    threading.Thread(target=served.serve_forever, args=(0.01,), daemon=True).start()
    yield served
    served.shutdown()
    served.server_close()


def scene() -> Scene:
    frame = VideoFrame(0, 0.0, 0, lambda: np.full((48, 64, 3), 128, np.uint8))
    return Scene(frame, (), ())


def event(notes: list[str]) -> AlertEvent:
    alert = Alert(1.0, "dog in sofa", "dog", 0.9, 0.5)
    return AlertEvent("cam", "now", alert, None, AlertPicture(scene(), None), notes.append)


def test_a_sentence_comes_back_for_the_picture_and_the_key_is_sent(server, monkeypatch):
    monkeypatch.setenv(KEY, SECRET)
    notes: list[str] = []
    action = DescribePicture(f"{server.url}/?model=llava:7b")
    action.do(event(notes))
    DescribePicture(f"{server.url}/chat/completions?prompt=Was%20siehst%20du?").do(event(notes))
    assert notes == ["A dog lies on the sofa."] * 2
    (path, headers, first), (other, _, second) = server.requests
    assert path == other == "/v1/chat/completions"
    assert headers["Authorization"] == f"Bearer {SECRET}"
    assert SECRET not in action.name
    assert (first["model"], second.get("model")) == ("llava:7b", None)
    (message,) = first["messages"]
    text, picture = message["content"]
    assert (message["role"], text["type"], picture["type"]) == ("user", "text", "image_url")
    assert "dog in sofa" in text["text"]
    assert second["messages"][0]["content"][0]["text"].startswith("Was siehst du?")
    head, data = picture["image_url"]["url"].split(",")
    assert head == "data:image/jpeg;base64"
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        assert (image.format, image.size) == ("JPEG", (64, 48))


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"choices": []}', b'{"choices": 3}'])
def test_other_answers_are_one_line(server, body):
    server.body = body
    with pytest.raises(OutputError, match=r"^description by http://127.*: the answer has no text$"):
        DescribePicture(server.url).do(event([]))


def test_a_refusal_is_one_line_and_a_long_answer_is_cut(server):
    notes: list[str] = []
    server.text = "\x1b[31m" + "word " * 1000
    DescribePicture(server.url).do(event(notes))
    assert len(notes[0]) == LONGEST
    assert "\x1b" not in notes[0]
    server.status = 404
    with pytest.raises(OutputError, match="the server answered 404"):
        DescribePicture(server.url).do(event([]))
    DescribePicture(server.url).do(AlertEvent("mic", "now", event([]).alert))  # without a picture
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("url", "what"), [("ftp://x/v1", "not a URL"), ("http://x/v1?key=a", "no option 'key'")]
)
def test_mistakes_are_refused_at_the_start(url, what):
    with pytest.raises(UsageError, match=what):
        read_options({"on": "dog", "describe": url})


def test_alerts_get_a_note_and_the_next_alert_comes_whatever_happens(server, caplog, tmp_path):
    alerts = Alerts()
    options = read_options({"on": "dog every 0", "describe": server.url})
    alerts.add("cam", options, CLASSES)
    (alert,) = alerts.push("cam", 1.0, {None: np.array([0.9, 0])}, scene=scene())
    found: list[tuple[str, AlertNote]] = []
    wait_until(lambda: found.extend(alerts.notes()) or found)
    assert found == [
        ("cam", AlertNote(1.0, alert.rule, "dog", description="A dog lies on the sofa.")),
    ]
    server.status = 400
    alerts.push("cam", 2.0, {None: np.array([0.0, 0])}, scene=scene())
    assert len(alerts.push("cam", 3.0, {None: np.array([0.9, 0])}, scene=scene())) == 1
    wait_until(lambda: alerts.failed)
    alerts.close()
    assert alerts.notes() == []
    assert len([r for r in caplog.records if "400" in r.getMessage()]) == 1
    assert not [*Path(tmp_path).iterdir()]
