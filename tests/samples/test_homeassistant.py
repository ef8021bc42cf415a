"""The add-on of Home Assistant: its files fit together, and its script starts the right watch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from costream.core.version import __version__
from costream.options.options import Options
from costream.runtime.watch.feed_list import read_feeds
from kit.http_server import Quiet, http_server
from kit.paths import SAMPLES

FOLDER = SAMPLES / "homeassistant"
# Keys of config.yaml in Home Assistant's documentation of add-ons; the first are required.
REQUIRED = {"name", "version", "slug", "description", "arch"}
OPTIONAL = {"init", "startup", "boot", "services", "map", "ports", "webui", "options", "schema"}
BROKER = {"host": "core-mosquitto", "port": 1883, "ssl": True, "username": "u", "password": "p$(x)"}
PROGRAM = """#!/usr/bin/env python3
import json, os, sys
print(json.dumps([sys.argv[1:], dict(os.environ)]))
"""
needs_tools = pytest.mark.skipif(
    not all(map(shutil.which, ("sh", "jq", "curl"))), reason="needs sh, jq and curl"
)


def read(name: str) -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((FOLDER / name).read_text("utf-8"))


def test_the_files_fit_together() -> None:
    config = read("config.yaml")
    assert REQUIRED <= config.keys() <= REQUIRED | OPTIONAL
    assert config["version"] == __version__
    assert config["options"].keys() == config["schema"].keys()
    script = (FOLDER / "run.sh").read_text("utf-8")
    assert all(f"option {name}" in script for name in config["schema"])
    for path in (FOLDER / "translations").glob("*.yaml"):
        words = read(f"translations/{path.name}")
        shown = words["configuration"]
        assert shown.keys() == config["schema"].keys()
        assert words["network"].keys() == config["ports"].keys()
        assert all(
            {"name", "description"} == each.keys() for each in words["configuration"].values()
        )
    lines = (FOLDER / "Dockerfile").read_text("utf-8").replace("\\\n", " ").splitlines()
    assert [line for line in lines if line.startswith("COPY")] == [
        *("COPY costream-*.whl /wheels/", "COPY run.sh /"),
    ]
    installed = next(line for line in lines if "apt-get" in line)
    assert all(tool in installed and f"{tool} " in script for tool in ("curl", "jq"))


class Supervisor(Quiet, BaseHTTPRequestHandler):
    """Answers as Home Assistant's Supervisor does about its broker."""

    def do_GET(self) -> None:
        known = self.path == "/services/mqtt" and self.headers["Authorization"] == "Bearer secret"
        body = json.dumps({"result": "ok", "data": BROKER}).encode()
        self.send_response(200 if known else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def supervisor() -> Iterator[str]:
    with http_server(Supervisor) as server:
        yield f"http://127.0.0.1:{server.server_port}"


def started(folder: Path, supervisor: str, token: str) -> subprocess.CompletedProcess[str]:
    """Run the script with its folders below ``folder``, and a program that prints its arguments."""
    script = (FOLDER / "run.sh").read_text("utf-8").replace("http://supervisor", supervisor)
    for name in ("/data/", "/config/"):
        script = script.replace(name, f"{folder}{name}")
    program = folder / "bin" / "costream"
    program.parent.mkdir(exist_ok=True)
    program.write_text(PROGRAM, "utf-8")
    program.chmod(0o755)
    variables = {**os.environ, "SUPERVISOR_TOKEN": token}
    variables["PATH"] = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    command = ["sh", "-c", script]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60)


@needs_tools
def test_the_script_starts_a_watch_with_the_options_and_the_broker(
    supervisor: str, tmp_path: Path
) -> None:
    from costream.cli.watch import command

    for name in ("data", "config"):
        (tmp_path / name).mkdir()
    arguments = "--on 'person for 2s' --on \"gap>=1min\" '$(touch x)'"
    options = {**read("config.yaml")["options"], "arguments": arguments, "web_token": "t"}
    (tmp_path / "data" / "options.json").write_text(json.dumps(options), "utf-8")
    done = started(tmp_path, supervisor, "secret")
    assert (done.returncode, "write feeds.toml" in done.stderr) == (1, True)
    feeds = tmp_path / "config" / "feeds.toml"
    feeds.write_text('[[feed]]\nurl = "rtsp://camera/x"\n', "utf-8")
    done = started(tmp_path, supervisor, "secret")
    (name, *words), variables = json.loads(done.stdout)
    assert (name, words[0], words[-1]) == ("watch", str(feeds), "$(touch x)")
    assert not (Path.cwd() / "x").exists()
    assert variables["COSTREAM_MQTT_PASSWORD"] == BROKER["password"]
    assert variables["COSTREAM_WEB_TOKEN"] == "t"
    assert "SUPERVISOR_TOKEN" not in variables
    given = command.make_context("watch", words[:-1]).params
    assert given["mqtt"] == "mqtts://core-mosquitto:1883"
    assert (given["on"], given["model"]) == (("person for 2s", "gap>=1min"), "nanodet")
    assert [spec.uri for spec in read_feeds(Options(sources=(str(feeds),)))] == ["rtsp://camera/x"]
    done = started(tmp_path, supervisor, "wrong")
    assert "runs without" in done.stderr
    assert "--mqtt" not in json.loads(done.stdout)[0]
