"""``--mqtt``: states, alerts, events and snapshots of a watch for a broker and Home Assistant.

Topics below PREFIX (default: costream), where FEED, ZONE, LINE and RULE are percent-encoded:

* ``status``: online or offline, the last will; ``FEED/available``: whether the feed is live
* ``FEED/label``, ``FEED/label/MODEL``, ``FEED/persons``, ``FEED/level``, ``FEED/zone/ZONE``,
  ``FEED/line/LINE``, ``FEED/rule/RULE``, ``FEED/snapshot``, ``FEED/description``: states, retained,
  sent when they change (the level: at most every LEVEL_S) and all again at each connection (so QoS
  0 is enough)
* ``FEED/enabled``, ``FEED/rule/RULE/enabled``: whether the feed is processed, and whether the rule
  may fire; ON or OFF to ``FEED/set`` and ``FEED/rule/RULE/set`` change it
* ``FEED/snapshot/now``: anything published here makes the newest picture the snapshot
* ``FEED/alert``, ``FEED/event``: JSON of each alert, and of each segment, visit, crossing and note,
  with QoS 1; while the broker is away, QUEUE of them wait

The descriptions for Home Assistant are below ``homeassistant/`` ("MQTT discovery").
"""

from __future__ import annotations

import logging
import math
import os
import re
import ssl
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote, urlsplit

from costream.core.errors import UsageError
from costream.core.places import Crossing, ZoneEvent
from costream.core.records import AlertNote, Header, Record, Segment, Summary, dumps, to_json
from costream.core.status import WatchStatus
from costream.models.base import ModelInfo
from costream.runtime.alerts.actions import SECRET_VARIABLES, AlertEvent
from costream.runtime.alerts.snapshots import AlertPicture, RemoteScene, Scene
from costream.runtime.alerts.worker import LogLimiter
from costream.runtime.watch.feed_list import FeedSpec
from costream.runtime.watch.home_assistant import (
    button_topic,
    described_topic,
    descriptions,
    shown,
    states_of,
    switch_topic,
    topic_part,
)

USER, PASSWORD = "COSTREAM_MQTT_USER", "COSTREAM_MQTT_PASSWORD"
QUEUE = 1000  # alerts and events that wait for the broker
LEVEL_S = 10.0  # the level is the mean over this time
KEEP_ALIVE_S = 30
CLOSE_S = 1.5  # time limit for disconnecting, and before it for what still waits
RETRY_S = (1, 30)  # between attempts to connect, growing
_PORTS = {"mqtt": 1883, "mqtts": 8883}
_PREFIX = "costream"
_DISCOVERY = "homeassistant"
_UNDESCRIBED = ("available", "rule/+")  # states of feeds that may have no description
_NO_TOPIC = re.compile(r"[+#\x00-\x1f]|^\$|^/|//|/$|^$")
log = logging.getLogger("costream")
# Feed, text of a rule, and whether it may fire. Without a rule: whether the feed is processed.
Enable = Callable[[str, str | None, bool], None]
Scenes = Mapping[str, Callable[[], Scene | RemoteScene | None]]


class MqttPublisher:
    """Publishes to one broker from a separate thread; no method waits for the broker.

    It is a view of the watch (``show``), an action of every alert (``do``), and makes a sink for
    the records of each feed.
    """

    wants_clip = False

    def __init__(self, url: str) -> None:
        """Raise UsageError if ``url`` is not the URL of a broker, or paho-mqtt is not installed."""
        try:
            from paho.mqtt import client as mqtt
            from paho.mqtt.enums import CallbackAPIVersion
        except ImportError as error:
            hint = "pip install 'costream[mqtt]'"
            raise UsageError("needs the extra mqtt", where="--mqtt", hint=hint) from error
        parts, host, port, self._prefix = _parsed(url)
        self.name = f"MQTT to {host}:{port}"
        self.dropped = 0  # alerts and events that came while the queue was full
        self._done = int(mqtt.MQTT_ERR_SUCCESS), int(mqtt.MQTT_ERR_NO_CONN)
        self._feeds: Sequence[FeedSpec] = ()
        self._switches: dict[str, tuple[str, str | None]] = {}  # feed and rule by topic
        self._scenes: Scenes = {}  # the newest picture of each feed
        self._buttons: dict[str, str] = {}  # feed by topic
        self._about: dict[str, Any] = {}  # for ``descriptions``
        self._states: dict[str, str | bytes] = {}  # by topic
        self._levels: dict[str, tuple[float, list[float]]] = {}  # by feed: last sent, powers since
        self._sent: dict[str, str | bytes] = {}  # since the connection was made
        self._described: dict[str, str] = {}  # descriptions by topic
        self._lock = threading.RLock()  # guards _states and _sent
        self._connected = self._closed = False
        self._newest: Any = None  # the newest alert or event, which the broker confirms last
        self._drops, self._troubles = LogLimiter(), LogLimiter()
        self._trouble = ""  # why there is no connection, in the last message
        client = self._client = mqtt.Client(CallbackAPIVersion.VERSION2)
        client.max_queued_messages_set(QUEUE)
        client.reconnect_delay_set(*RETRY_S)
        client.will_set(f"{self._prefix}/status", "offline", 1, retain=True)
        SECRET_VARIABLES.add(PASSWORD)
        user = unquote(parts.username or "") or os.environ.get(USER)
        password = unquote(parts.password or "") or os.environ.get(PASSWORD)
        if user:
            client.username_pw_set(user, password)
        if parts.scheme == "mqtts":
            client.tls_set_context(ssl.create_default_context())
        client.on_connect, client.on_disconnect = self._on_connect, self._on_disconnect
        client.on_connect_fail = self._on_connect_fail
        client.on_message = self._on_message
        client.connect_async(host, port, KEEP_ALIVE_S)

    def begin(
        self,
        feeds: Sequence[FeedSpec],
        model: ModelInfo,
        enable: Enable,
        scenes: Scenes = MappingProxyType({}),
    ) -> None:
        """Connect, and describe these feeds whenever there is a connection.

        ``enable`` is called, by another thread, with a feed, a rule (None: the feed itself) and
        whether it is on. ``scenes`` returns the newest picture of each feed.
        """
        several = len(model.heads) > 1
        self._feeds, self._enable, self._scenes = feeds, enable, scenes
        self._buttons = {button_topic(feed): feed for feed in scenes}
        self._switches = {
            switch_topic(feed.name, rule): (feed.name, rule)
            for feed in feeds
            for rule in (None, *dict.fromkeys(rule.text for rule in feed.alerts.on))
        }
        for topic in self._switches:
            self._state(f"{topic}/enabled", "ON")
        self._about = {
            "model": model.card.name,
            "heads": [head.card.name for head in model.heads] if several else [],
            "sound": bool(model.sound or model.beside),
            "persons": model.follows,
            "pictures": model.box is not None,
        }
        self._client.loop_start()

    def show(self, status: WatchStatus) -> None:
        """Publish the states that have changed."""
        for feed in status.feeds:
            for topic, value in states_of(feed).items():
                self._state(f"{topic_part(feed.name)}/{topic}", value)
            if feed.state == "live" and feed.level_db is not None:
                self._take_level(feed.name, feed.level_db)

    def _take_level(self, feed: str, level_db: float) -> None:
        """Publish the mean power of a feed's sound since the last time, LEVEL_S ago."""
        now_s = time.monotonic()
        since_s, powers = self._levels.setdefault(feed, (-math.inf, []))
        powers.append(10 ** (level_db / 10))
        if now_s - since_s >= LEVEL_S:
            mean_db = 10 * math.log10(sum(powers) / len(powers))
            self._state(f"{topic_part(feed)}/level", f"{mean_db:.0f}")
            self._levels[feed] = now_s, []

    def do(self, event: AlertEvent) -> None:
        """Publish an alert, and its snapshot as the state of the feed's picture."""
        base = topic_part(event.feed)
        if event.snapshot is not None:
            self._state(f"{base}/snapshot", event.snapshot.jpeg())
        self._publish(f"{base}/alert", event.json)

    def cancel(self) -> None:
        """Do nothing: publishing takes no time."""

    def sink(self, feed: str) -> EventSink:
        """Return a sink that publishes the events of a feed."""
        return EventSink(self, feed)

    def event(self, feed: str, text: str) -> None:
        """Publish an event of a feed."""
        self._publish(f"{topic_part(feed)}/event", text)

    def describe(self, feed: str, text: str) -> None:
        """Publish the description of the newest picture of a feed."""
        self._state(f"{topic_part(feed)}/description", shown(text))

    def close(self) -> None:
        """Publish that the watch has ended, and disconnect. May be called again."""
        if self._closed:
            return
        self._closed = True
        ending = threading.Thread(target=self._end, daemon=True)
        ending.start()
        ending.join(2 * CLOSE_S)

    def _end(self) -> None:
        if self._connected:
            if self._newest is not None:
                with suppress(ValueError, RuntimeError):  # the queue was full
                    self._newest.wait_for_publish(CLOSE_S)
            last = self._client.publish(f"{self._prefix}/status", "offline", retain=True)
            with suppress(ValueError, RuntimeError):  # the broker has left
                last.wait_for_publish(CLOSE_S)
        self._client.disconnect()
        self._client.loop_stop()

    def _publish(self, topic: str, text: str) -> None:
        data = text.encode("utf-8", "backslashreplace")
        info = self._newest = self._client.publish(f"{self._prefix}/{topic}", data, qos=1)
        if int(info.rc) not in self._done:
            self.dropped += 1
            self._drops.warn(f"{self.name}: {QUEUE} messages wait already, a new one was dropped")

    def _state(self, topic: str, value: str | bytes) -> None:
        with self._lock:
            self._states[topic] = value
            if self._connected and self._sent.get(topic) != value:
                self._sent[topic] = value
                self._client.publish(f"{self._prefix}/{topic}", value, retain=True)

    def _on_connect(self, client: Any, _: Any, __: Any, reason: Any, ___: Any) -> None:
        if reason.is_failure:
            self._log_trouble(f"refused: {str(reason).lower()}")
            return
        if self._trouble:
            log.warning("%s: connected again", self.name)
        self._trouble = ""
        described = descriptions(self._feeds, self._prefix, **self._about)
        self._described = {f"{_DISCOVERY}/{t}/config": dumps(payload) for t, payload in described}
        for topic, text in self._described.items():
            client.publish(topic, text, retain=True)
        for topic in self._switches:
            client.subscribe(f"{self._prefix}/{topic}/set")
        for topic in self._buttons:
            client.subscribe(f"{self._prefix}/{topic}")
        client.subscribe(f"{_DISCOVERY}/+/+/+/config")  # also what earlier watches described
        for name in _UNDESCRIBED:
            client.subscribe(f"{self._prefix}/+/{name}")
        client.publish(f"{self._prefix}/status", "online", retain=True)
        with self._lock:
            self._connected = True
            self._sent.clear()
            for topic, value in self._states.items():
                self._state(topic, value)

    def _on_message(self, client: Any, _: Any, message: Any) -> None:
        """Obey a command; remove or restore descriptions of an earlier watch, and of this one."""
        topic, closed = str(message.topic), self._closed
        if topic.startswith(f"{self._prefix}/") and not topic.endswith("/config"):
            if self._is_command(topic, message):
                return
            if message.retain and message.payload and not closed and self._is_stale(topic):
                client.publish(topic, b"", retain=True)
            return
        if text := self._described.get(topic):
            if not message.payload and not closed:
                client.publish(topic, text, retain=True)
            return
        if closed or not message.retain:  # it was sent just now, by a program that is running
            return
        if (gone := described_topic(message.payload, self._prefix)) is not None:
            client.publish(topic, b"", retain=True)
            if gone not in self._states and not self._is_described(gone):
                client.publish(f"{self._prefix}/{gone}", b"", retain=True)

    def _is_command(self, topic: str, message: Any) -> bool:
        """Return whether a message is a command to a switch or button, after obeying it."""
        command = topic.removeprefix(f"{self._prefix}/")
        switch = command.removesuffix("/set")
        if switch != command and switch in self._switches:
            if message.payload in (b"ON", b"OFF"):
                self._enable(*self._switches[switch], message.payload == b"ON")
                self._state(f"{switch}/enabled", bytes(message.payload))
            return True
        if command in self._buttons:
            if message.payload and not message.retain:
                self._take_picture(self._buttons[command])
            return True
        return False

    def _is_stale(self, topic: str) -> bool:
        """Return whether a state was left by an earlier watch: no feed or rule has it now."""
        name, _, state = topic.removeprefix(f"{self._prefix}/").partition("/")
        feed = next((feed for feed in self._feeds if topic_part(feed.name) == name), None)
        if feed is None:
            return True
        rules = dict.fromkeys(rule.text for rule in feed.alerts.on)
        names = [*map(topic_part, rules), *(str(k + 1) for k in range(len(rules)))]
        return state not in {"available", *(f"rule/{each}" for each in names)}

    def _is_described(self, gone: str) -> bool:
        return any(described_topic(text, self._prefix) == gone for text in self._described.values())

    def _take_picture(self, feed: str) -> None:
        """Publish the newest picture of a feed, if it has one, as its snapshot."""
        scene = self._scenes[feed]()
        if scene is not None:
            self._state(f"{topic_part(feed)}/snapshot", AlertPicture(scene, None).jpeg())

    def _on_disconnect(self, _: Any, __: Any, ___: Any, reason: Any, ____: Any) -> None:
        was_connected, self._connected = self._connected, False
        if was_connected and not self._closed:
            self._log_trouble(f"the connection was lost ({str(reason).lower()})")

    def _on_connect_fail(self, *_: Any) -> None:
        error = sys.exc_info()[1]
        reason = getattr(error, "verify_message", "") or getattr(error, "strerror", "") or error
        self._log_trouble(str(reason).lower())

    def _log_trouble(self, trouble: str) -> None:
        """Log why there is no connection: at once, then at intervals while it is tried again."""
        self._connected = False
        if self._closed:
            return
        text = f"{self.name}: {trouble}, trying again"
        if trouble != self._trouble:
            self._troubles = LogLimiter()
        self._trouble = trouble
        self._troubles.warn(text)


class EventSink:
    """Publishes the segments, visits, crossings and notes of one feed as JSON, as in its file."""

    def __init__(self, publisher: MqttPublisher, feed: str) -> None:
        self._publisher, self._feed = publisher, feed

    def open(self, header: Header) -> None:
        """Do nothing: the feed has been described."""

    def write(self, record: Record) -> None:
        """Publish a record that is an event."""
        if isinstance(record, AlertNote) and record.description is not None:
            self._publisher.describe(self._feed, record.description)
        if isinstance(record, (Segment, ZoneEvent, Crossing, AlertNote)):
            self._publisher.event(self._feed, dumps({**to_json(record), "feed": self._feed}))

    def close(self, summary: Summary) -> None:
        """Do nothing: the publisher ends with the watch."""


def _parsed(url: str) -> tuple[Any, str, int, str]:
    """Return the parts of a URL, its host, port and prefix."""
    hint = "write mqtt://HOST, mqtts://HOST:PORT or mqtt://HOST/PREFIX"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in _PORTS or parts.query or parts.fragment:
        # An invalid URL cannot be redacted, and may hold a password.
        raise UsageError("not the URL of a broker", where="--mqtt", hint=hint)
    prefix = unquote(parts.path).strip("/") or _PREFIX
    if _NO_TOPIC.search(prefix):
        raise UsageError(f"{prefix!r} cannot begin a topic", where="--mqtt", hint=hint)
    return parts, host, port or _PORTS[parts.scheme], prefix
