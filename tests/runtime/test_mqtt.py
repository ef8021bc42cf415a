"""Messages to a real broker: states, alerts, Home Assistant, and a broker that fails."""

from __future__ import annotations

import io
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from costream.core.errors import UsageError
from costream.core.places import PlaceCount, ZoneEvent, parse_place
from costream.core.records import Alert, Box, VideoFrame
from costream.core.status import PersonStatus
from costream.models.base import ModelHead, ModelInfo
from costream.runtime.alerts.actions import AlertEvent
from costream.runtime.alerts.alerts import Alerts, read_options
from costream.runtime.alerts.rules import RuleLabels
from costream.runtime.alerts.snapshots import AlertPicture, Scene
from costream.runtime.watch import mqtt
from costream.runtime.watch.feed_list import FeedSpec
from costream.runtime.watch.home_assistant import descriptions, states_of, topic_part
from costream.runtime.watch.mqtt import Enable, MqttPublisher
from costream.weights_io.card import Card
from kit.broker import Broker, Listener, needs_broker
from kit.runs import records, wait_until
from kit.tcp_proxy import TcpProxy
from kit.watched import feed, watch

HOSTILE = "a/+#$\u0001\"'{{ x }} ünï\n"
DOOR = parse_place("front door=0,0 1,0 1,1", "zone", "--zone")
GATE = parse_place("gate=0,0 1,1", "line", "--line")
RULES = read_options({"on": ["person in 'front door' for 5s", "lost"]})
SPECS = [
    FeedSpec("door", "rtsp://x", "rtsp://x", RULES, places=(DOOR, GATE)),
    FeedSpec(HOSTILE, "rtsp://y", "rtsp://y", read_options({})),
]
EVENT = AlertEvent("door", "2026-11-22T03:00:00Z", Alert(1.0, "lost", "lost", 1.0, 0.0))
CARD = Card("yolos-tiny", "object detection", "yolos", {}, ("person",), 4.0)
INFO = ModelInfo(CARD, "", (ModelHead(CARD, "", slice(None)),), box=(64, 48))
VISIT = ZoneEvent(1.0, "front door", "enter", "person", 1, 0.0, 1, 1, 0)


def publishing(
    url: str, specs: Sequence[FeedSpec] = SPECS, enable: Enable = lambda *_: None
) -> MqttPublisher:
    publisher = MqttPublisher(url)
    publisher.begin(specs, INFO, enable)
    return publisher


@pytest.mark.parametrize(
    "url", ["broker", "http://x", "mqtt://", "mqtt://x:port", "mqtt://x/a/%23"]
)
def test_other_addresses_are_not_brokers(url: str) -> None:
    pytest.importorskip("paho")
    with pytest.raises(UsageError, match=r"^--mqtt: (not the URL of a broker|'a/#' cannot begin)"):
        MqttPublisher(url)


def test_names_are_one_level_of_a_topic_each() -> None:
    names = [HOSTILE, "a/b", "a%2Fb", "a+b", "#", "$SYS", "front door", "門", "\udcff"]
    parts = [topic_part(name) for name in names]
    assert len(set(parts)) == len(parts)
    assert not any(set(part) & set("+#/$\x01\n") for part in parts)
    assert topic_part("front door_2") == "front door_2"


# Keys that Home Assistant's documentation of MQTT discovery lists, and those that it requires.
COMMON = {"availability", "availability_mode", "device", "origin", "unique_id", "name"}
SCHEMA: dict[str, tuple[set[str], set[str]]] = {
    "sensor": (
        {"state_topic"},
        {"value_template", "json_attributes_topic", "state_class", "unit_of_measurement",
         "device_class"},
    ),
    "binary_sensor": ({"state_topic"}, {"payload_on", "payload_off", "off_delay"}),
    "switch": ({"state_topic", "command_topic"}, {"entity_category", "retain"}),
    "image": ({"image_topic"}, {"content_type"}),
    "button": ({"command_topic"}, {"entity_category", "payload_press"}),
}  # fmt: skip


def test_descriptions_are_as_home_assistant_documents_them() -> None:
    found = list(descriptions(SPECS, "costream", "yolos-tiny"))
    kinds = [topic.split("/")[0] for topic, _ in found]
    assert kinds == ["sensor", "switch", "image", "button", "sensor", "sensor", "binary_sensor",
                     "switch", "binary_sensor", "switch",
                     "sensor", "switch", "image", "button"]  # fmt: skip
    silent = descriptions(SPECS, "costream", "cosounds", sound=True, pictures=False)
    assert not {topic.split("/")[0] for topic, _ in silent} & {"image", "button"}
    ids = set()
    for topic, payload in found:
        component, node, name = topic.split("/")
        assert all(c.isascii() and (c.isalnum() or c in "-_") for c in node + name)
        required, optional = SCHEMA[component]
        assert required <= payload.keys() <= required | optional | COMMON
        assert payload["device"].keys() == {
            "identifiers", "name", "manufacturer", "model", "sw_version",
        }  # fmt: skip
        assert {"name"} <= payload["origin"].keys() <= {"name", "sw_version", "support_url"}
        assert all(entry.keys() == {"topic"} for entry in payload["availability"])
        ids.add(payload["unique_id"])
        json.dumps(payload, allow_nan=False)
    assert len(ids) == len(found)
    assert found[4][1]["value_template"] == "{{ value_json.now }}"
    assert found[4][1]["state_topic"] == "costream/door/zone/front door"


@needs_broker
def test_states_alerts_and_the_will(tmp_path: Path) -> None:
    places = (PlaceCount("front door", "zone", "person", 2, 5, 3),
              PlaceCount("front door", "zone", "car", 1, 1, 0),
              PlaceCount("gate", "line", "car", 0, 3, 1))  # fmt: skip
    seen = feed(places=places, rules={"person in 'front door' for 5s": True, "lost": False})
    status = watch(seen, feed(HOSTILE, state="waiting", active="x"))
    scene = Scene(VideoFrame(0, 0.0, 0, lambda: np.zeros((48, 64, 3), np.uint8)), (), (DOOR,))
    with Broker(tmp_path) as broker, Listener(broker) as heard:
        publisher = MqttPublisher(f"mqtt://127.0.0.1:{broker.port}/site/a")
        switched: list[object] = []
        publisher.begin(SPECS, INFO, lambda *command: switched.append(command),
                        {"door": lambda: scene, HOSTILE: lambda: None})  # fmt: skip
        publisher.show(status)
        publisher.do(replace(EVENT, snapshot=AlertPicture(scene, None)))
        publisher.sink("door").write(VISIT)
        told = ("alert", "event", "snapshot")  # in any order
        wait_until(lambda: all(heard.newest(f"site/a/door/{name}") for name in told))
        assert {heard.newest(f"site/a/{n}") for n in ("status", "door/available")} == {b"online"}
        assert heard.newest("site/a/door/label") == b"walk"
        zone = json.loads(heard.newest("site/a/door/zone/front door") or "")
        assert zone == {"now": 3, "ins": 6, "outs": 3, "labels": {"person": 2, "car": 1},
                        "ins_of": {"person": 5, "car": 1}}  # fmt: skip
        line = json.loads(heard.newest("site/a/door/line/gate") or "")
        assert line == {"ins": 3, "outs": 1, "labels": {"car": 3}, "ins_of": {"car": 3}}
        rules = [topic_part(rule) for rule in ("person in 'front door' for 5s", "lost")]
        assert [heard.newest(f"site/a/door/rule/{rule}") for rule in rules] == [b"ON", b"OFF"]
        assert heard.newest(f"site/a/{topic_part(HOSTILE)}/available") == b"offline"
        alert = json.loads(heard.newest("site/a/door/alert") or "")
        assert (alert["feed"], alert["rule"]) == ("door", "lost")
        event = json.loads(heard.newest("site/a/door/event") or "")
        assert (event["type"], event["zone"], event["feed"]) == ("zone", "front door", "door")
        with Image.open(io.BytesIO(heard.newest("site/a/door/snapshot") or b"")) as picture:
            assert picture.size == (64, 48)
        publisher._state("door/snapshot", b"another")
        for name in ("door", topic_part(HOSTILE)):  # the second has no picture yet
            publisher._client.publish(f"site/a/{name}/snapshot/now", "PRESS")
        wait_until(lambda: len(heard.all("site/a/door/snapshot")) == 3)
        assert heard.newest(f"site/a/{topic_part(HOSTILE)}/snapshot") is None
        assert switched == []  # the states of rules are no commands
        before = len(heard.messages)
        publisher.show(status)  # nothing has changed
        publisher.show(watch(replace(seen, active="sit"), status.feeds[1]))
        wait_until(lambda: heard.newest("site/a/door/label") == b"sit")
        assert len(heard.messages) == before + 1
        with Listener(broker) as late:  # what is retained
            wait_until(lambda: len(late.messages) >= 14 + 13)
            topics = {topic for topic, _ in late.messages}
        assert sum(topic.startswith("homeassistant/") for topic in topics) == 14
        assert not topics & {"site/a/door/alert", "site/a/door/event"}
        publisher.close()
        wait_until(lambda: heard.newest("site/a/status") == b"offline")
        dying = publishing(f"mqtt://127.0.0.1:{broker.port}")
        wait_until(lambda: heard.newest("costream/status") == b"online")
        dying._client.socket().close()  # as if the process was killed
        wait_until(lambda: heard.newest("costream/status") == b"offline")
        dying.close()


@needs_broker
def test_a_rule_is_switched_by_a_command_also_a_retained_one(tmp_path: Path) -> None:
    alerts = Alerts()
    alerts.add("door", RULES, RuleLabels(("person",), (0.5,), frozenset()), {"front door": "zone"})
    with Broker(tmp_path) as broker, Listener(broker) as heard:
        url = f"mqtt://127.0.0.1:{broker.port}"
        specs = [SPECS[0]]
        topic = "costream/door/rule/lost"
        for state, said in (("ON", 1), ("OFF", 4)):  # before and after a restart
            publisher = publishing(url, specs, alerts.enable)
            wait_until(lambda said=said: len(heard.all(f"{topic}/enabled")) == said)
            assert heard.newest(f"{topic}/enabled") == state.encode()
            fired = [alerts.state("door", at_s, "lost", at_s) for at_s in (1.0, 40.0)]
            assert sum(map(len, fired)) == (state == "ON")
            alerts.state("door", 41.0, "live", 0.0)
            publisher._client.publish(f"{topic}/set", "nonsense", retain=True)
            publisher._client.publish(f"{topic}/set", "OFF", retain=True)
            wait_until(lambda: heard.newest(f"{topic}/enabled") == b"OFF")
            publisher.close()
            alerts.enable("door", "lost", True)


@needs_broker
def test_levels_are_published_seldom_as_means(tmp_path: Path, monkeypatch) -> None:
    with Broker(tmp_path) as broker, Listener(broker) as heard:
        publisher = publishing(f"mqtt://127.0.0.1:{broker.port}")
        wait_until(lambda: heard.newest("costream/status") == b"online")
        publisher.show(watch(feed(level_db=-80.0)))
        for k in range(99):  # loud in a tenth of the time
            publisher.show(watch(feed(level_db=-20.0 if k % 10 == 3 else -80.0)))
        monkeypatch.setattr(mqtt, "LEVEL_S", 0.0)
        publisher.show(watch(feed(level_db=-80.0)))
        publisher.show(watch(feed(level_db=-5.0, state="stalled")))
        wait_until(lambda: heard.newest("costream/door/level") == b"-30")
        publisher.close()
        assert heard.all("costream/door/level") == [b"-80", b"-30"]


@needs_broker
def test_events_that_wait_for_the_broker_are_published_before_the_end(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Listener(broker) as heard:
        publisher = publishing(f"mqtt://127.0.0.1:{broker.port}")
        wait_until(lambda: heard.newest("costream/status") == b"online")
        for k in range(400):  # more than are on their way at once
            publisher.event("door", str(k))
        publisher.close()
        sent = [str(k).encode() for k in range(400)]
        wait_until(lambda: heard.all("costream/door/event") == sent)
        wait_until(lambda: heard.newest("costream/status") == b"offline")


@needs_broker
def test_what_is_gone_since_the_last_watch_is_removed(tmp_path: Path) -> None:
    """Its rules, places and feeds; not what another watch describes, nor other programs."""
    fewer = [replace(SPECS[0], alerts=read_options({"on": "lost"}), places=(GATE,))]
    seen = feed(places=(PlaceCount("front door", "zone", "person", 2, 5, 3),), rules={"a": True})
    with Broker(tmp_path) as broker, Listener(broker) as heard:
        url = f"mqtt://127.0.0.1:{broker.port}"
        for other in (publishing(f"{url}/other"), first := publishing(url)):
            other.show(watch(seen, feed(HOSTILE, state="waiting", active="x")))
        wait_until(lambda: heard.newest("costream/door/zone/front door"))
        wait_until(lambda: sum(t.startswith("homeassistant/") for t, _ in heard.messages) >= 28)
        first.close()
        second = publishing(url, fewer)
        described = {f"homeassistant/{t}/config" for t, _ in descriptions(fewer, "costream", "x")}

        def retained() -> set[str]:
            with Listener(broker) as late:
                wait_until(lambda: len(late.messages) >= 14 + 8)
                time.sleep(0.2)
                return {t for t, p in late.messages if p and t.startswith("homeassistant/")}

        wait_until(lambda: {t for t in retained() if "/costream_" in t} == described)
        assert sum("/other_" in topic for topic in retained()) == 14
        with Listener(broker) as late:
            wait_until(lambda: late.newest("costream/door/label"))
            assert late.newest("costream/door/zone/front door") is None
            left = {topic for topic, _ in late.messages if topic.startswith("costream/")}
        assert not {t for t in left if "/rule/2" in t or topic_part(HOSTILE) in t}
        for publisher in (second, other):
            publisher.close()


def test_hostile_labels_are_text_in_states() -> None:
    """One line each, without credentials; models' names are one level of a topic."""
    label = f"{HOSTILE}rtsp://me:pa55@cam/x\u2028"
    persons = (PersonStatus(1, label, ((label, 0.9),)),)
    counts = (PlaceCount("a/b+#", "zone", label, 1, 1, 0),)
    status = feed(HOSTILE, active=label, heads={"a/#": label}, persons=persons, places=counts)
    states = states_of(status)
    assert set(states) == {"available", "label", "label/a%2F%23", "persons", "zone/a%2Fb%2B%23"}
    for text in (states["label"], states["label/a%2F%23"], states["persons"]):
        assert "pa55" not in text
        assert text.isprintable()
    assert json.loads(states["persons"])["actions"].keys() == {"1"}
    assert json.loads(states["zone/a%2Fb%2B%23"])["labels"] == {label: 1}


@needs_broker
def test_a_broker_that_is_killed_and_comes_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt, "QUEUE", 50)
    monkeypatch.setattr(mqtt, "RETRY_S", (1, 1))
    with (
        caplog.at_level(logging.WARNING),
        Broker(tmp_path) as broker,
        TcpProxy(broker.port) as between,
    ):
        publisher = publishing(f"mqtt://127.0.0.1:{between.port}")
        with Listener(broker) as heard:
            publisher.show(watch(feed()))
            wait_until(lambda: heard.newest("costream/door/label"))
            between.cut()
            wait_until(lambda: "trying again" in caplog.text)
            began_s = time.monotonic()
            for number in range(70):
                publisher.event("door", json.dumps({"number": number}))
            publisher.show(watch(feed(active="sit")))
            assert time.monotonic() - began_s < 1.0  # nothing waits
            assert publisher.dropped == 20
            assert "50 messages wait already, a new one was dropped" in caplog.text
            wait_until(lambda: len(heard.all("costream/door/event")) >= 50)
            numbers = [json.loads(text)["number"] for text in heard.all("costream/door/event")]
            assert numbers == list(range(50))
            wait_until(lambda: heard.newest("costream/door/label") == b"sit")
        assert "connected again" in caplog.text
        wait_until(lambda: not publisher._client._out_messages)  # the broker has confirmed them
        broker.kill()
        between.cut()
        for number in range(3):
            publisher.event("door", json.dumps({"number": number}))
        publisher.show(watch(feed(active="fall")))
        broker.start()  # it knows nothing of what was retained
        with Listener(broker) as heard:
            wait_until(lambda: heard.newest("costream/door/label") == b"fall")
            assert heard.newest("costream/status") == b"online"
            assert heard.newest("homeassistant/sensor/costream_door/label/config")
        assert publisher.dropped == 20
        publisher.close()


@needs_broker
@pytest.mark.parametrize("wrong", ["password", "certificate", "nobody"])
def test_what_is_refused_is_reported_in_one_line_and_tried_again(
    wrong: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt, "RETRY_S", (1, 1))
    settings: dict[str, Any] = (
        {"tls": True} if wrong == "certificate" else {"login": ("me", "right")}
    )
    with caplog.at_level(logging.INFO), Broker(tmp_path, **settings) as broker:
        monkeypatch.setenv(mqtt.USER, "me")
        monkeypatch.setenv(mqtt.PASSWORD, "wr0ng")
        if wrong == "nobody":
            broker.kill()
        scheme, host = ("mqtts", "localhost") if wrong == "certificate" else ("mqtt", "127.0.0.1")
        url = f"{scheme}://{host}:{broker.port}"
        publisher = publishing(url)
        wait_until(lambda: caplog.records)
        time.sleep(1.5)
        (line,) = (record.getMessage() for record in caplog.records)  # though tried more than once
        why = {"password": "refused: not authorized", "certificate": "self-signed certificate",
               "nobody": "connection refused"}[wrong]  # fmt: skip
        assert why in line
        assert line.startswith(f"MQTT to {host}:{broker.port}: ")
        assert "wr0ng" not in caplog.text
        publisher.close()
        monkeypatch.setenv(mqtt.PASSWORD, "right")
        if wrong == "nobody":
            broker.start()
        if wrong == "certificate":
            monkeypatch.setenv("SSL_CERT_FILE", str(broker.certificate))
        good = publishing(url)
        wait_until(lambda: good._connected)
        good.close()


def test_snapshots_of_alerts(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    alerts = Alerts(snapshots=tmp_path / "pictures")
    options = read_options({"on": "fall every 0", "append": str(log),
                            "run": f"cp {{snapshot}} {tmp_path}/copy.jpg"})  # fmt: skip
    alerts.add("door/1", options, RuleLabels(("no", "fall"), (0.5, 0.5), frozenset({0})))
    grey = np.full((240, 320, 3), 90, np.uint8)
    scene = Scene(
        VideoFrame(0, 0.0, 0, grey.copy, size=(640, 480)),
        (Box(320, 240, 480, 400, 0.9, "fall", 1),),
        (parse_place("left=0,0 0.5,0 0.5,1 0,1", "zone", "--zone"),),
    )
    found = []
    for k in range(2):
        found += alerts.push("door/1", 2.0 * k, {None: np.array([0.1, 0.9])}, None, scene)
        alerts.push("door/1", 2.0 * k + 1, {None: np.array([0.9, 0.1])}, None, scene)
    alerts.close(10.0)
    assert alerts.failed == 0
    names = [alert.snapshot for alert in found]
    assert len(set(names)) == 2
    assert {path.name for path in (tmp_path / "pictures").iterdir()} == set(names)
    line = records(log)[0]
    assert line["snapshot"] == str(tmp_path / "pictures" / str(names[0]))
    assert line["snapshot_url"] == (tmp_path / "pictures" / str(names[0])).as_uri()
    assert (tmp_path / "copy.jpg").read_bytes() == Path(line["snapshot"]).read_bytes()
    with Image.open(line["snapshot"]) as picture:
        assert picture.size == (320, 240)
        pixels = np.asarray(picture).astype(int)
    changed = np.abs(pixels - 90).max(2) > 40
    assert changed[150, 158:164].any()  # the box from 160 on, and the zone up to there
    assert changed[120:124, 200].any()
    assert not changed[60:100, 200:300].any()
    broken = Alerts(snapshots=log)  # a file
    broken.add("door", options, RuleLabels(("no", "fall"), (0.5, 0.5), frozenset({0})))
    broken.push("door", 0.0, {None: np.array([0.1, 0.9])}, None, scene)
    broken.close(10.0)
    assert broken.failed >= 1
