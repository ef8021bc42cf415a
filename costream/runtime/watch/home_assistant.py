"""States of feeds as MQTT topics, and their descriptions for Home Assistant ("MQTT discovery")."""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias
from urllib.parse import quote

from costream.core.commit import code_version
from costream.core.errors import clean
from costream.core.places import Place, PlaceCount
from costream.core.status import FeedStatus
from costream.core.urls import redact
from costream.runtime.watch.feed_list import FeedSpec

Entity: TypeAlias = tuple[str, str, dict[str, Any]]  # component, name and description
_LONGEST = 255  # characters of a state of Home Assistant
# Of each kind of place: the value that is its state, and the class of that state.
_COUNTS = {"zone": ("now", "measurement"), "line": ("ins", "total_increasing")}


def topic_part(text: str) -> str:
    """Return a name as one level of a topic: percent-encoded, so that no two are the same."""
    return quote(text.encode("utf-8", "surrogateescape"), safe=" ()@=,;!'")


def switch_topic(feed: str, rule: str | None) -> str:
    """Return the topic, below the prefix, of a rule; of its feed if ``rule`` is None.

    Below it are ``enabled`` and ``set``.
    """
    return topic_part(feed) if rule is None else f"{topic_part(feed)}/rule/{topic_part(rule)}"


def button_topic(feed: str) -> str:
    """Return the topic, below the prefix, of commands to take a picture."""
    return f"{topic_part(feed)}/snapshot/now"


def _slug(text: str) -> str:
    """Return a name for ids of Home Assistant; different names have different ids."""
    slug = re.sub(r"[^A-Za-z0-9-]+", "_", text)[:40]
    if slug == text:
        return slug
    return f"{slug}_{hashlib.sha1(text.encode('utf-8', 'replace')).hexdigest()[:8]}"


def described_topic(payload: str | bytes, prefix: str) -> str | None:
    """Return the topic, below ``prefix``, of the state or command in a description.

    None if the description was not made by a watch with this prefix.
    """
    try:
        description = json.loads(payload)
        topics = [entry["topic"] for entry in description["availability"]]
        names = ("state_topic", "image_topic", "command_topic")
        topic = str(next(description[name] for name in names if name in description))
        ours = description["origin"]["name"] == "costream" and f"{prefix}/status" in topics
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration):
        return None
    return topic.removeprefix(f"{prefix}/") if ours else None


def shown(text: str) -> str:
    """Return a text as a state: on one line, without credentials, at most _LONGEST characters."""
    return clean(redact(text))[:_LONGEST]


def states_of(feed: FeedStatus) -> dict[str, str]:
    """Return the states of a feed by topic."""
    live = feed.state == "live"
    states = {"available": "online" if live else "offline"}
    if live:
        states["label"] = shown(feed.active or "none")
        for name, label in feed.heads.items():
            states[f"label/{topic_part(name)}"] = shown(label or "none")
        if feed.persons is not None:
            actions = {str(p.number): shown(p.active or "none") for p in feed.persons}
            states["persons"] = json.dumps({"now": len(actions), "actions": actions})
    by_place: defaultdict[tuple[str, str], list[PlaceCount]] = defaultdict(list)
    for count in feed.places:
        by_place[count.kind, count.place].append(count)
    for (kind, place), counts in by_place.items():
        names = ("now", "ins", "outs") if kind == "zone" else ("ins", "outs")
        sums = {name: sum(getattr(count, name) for count in counts) for name in names}
        labels = {count.label: count.now if kind == "zone" else count.ins for count in counts}
        each = {"labels": labels, "ins_of": {count.label: count.ins for count in counts}}
        states[f"{kind}/{topic_part(place)}"] = json.dumps(sums | each)
    for number, (text, holds) in enumerate(feed.rules.items(), 1):
        # The numbers are those of earlier releases.
        states |= dict.fromkeys(
            (f"rule/{number}", f"rule/{topic_part(text)}"), "ON" if holds else "OFF"
        )
    return states


def descriptions(
    feeds: Iterable[FeedSpec],
    prefix: str,
    model: str,
    *,
    heads: Sequence[str] = (),
    sound: bool = False,
    persons: bool = False,
    pictures: bool = True,
) -> Iterable[tuple[str, dict[str, Any]]]:
    """Yield the topics and payloads that describe the feeds to Home Assistant.

    ``heads``: names of several models. ``sound``: levels are measured. ``persons``: persons are
    followed. ``pictures``: there are snapshots.
    """
    for feed in feeds:
        node, base = f"{_slug(prefix)}_{_slug(feed.name)}", f"{prefix}/{topic_part(feed.name)}"
        common: dict[str, Any] = {
            "availability": [{"topic": f"{prefix}/status"}, {"topic": f"{base}/available"}],
            "availability_mode": "all",
            "device": {
                "identifiers": [node],
                "name": shown(feed.name),
                "manufacturer": "costream",
                "model": model,
                "sw_version": code_version(),
            },
            "origin": {"name": "costream", "sw_version": code_version()},
        }
        entities: list[Entity] = [
            ("sensor", "label", {"name": "Label", "state_topic": f"{base}/label"}),
        ]
        watch = [{"topic": f"{prefix}/status"}]
        entities.append(_switch("Watched", "enabled", base, watch))
        if pictures:
            entities += _snapshot(base, f"{prefix}/{button_topic(feed.name)}", watch)
        if feed.alerts.describe:
            entity = {"name": "Description", "state_topic": f"{base}/description"}
            entities.append(("sensor", "description", entity))
        for name in heads:
            entity = {"name": f"Label {name}", "state_topic": f"{base}/label/{topic_part(name)}"}
            entities.append(("sensor", f"label_{_slug(name)}", entity))
        if sound:
            entities.append(_sound_level(base))
        if persons:
            entities.append(_person_count(base))
        entities += [_place(place, base) for place in feed.places if place.kind in _COUNTS]
        for text in dict.fromkeys(rule.text for rule in feed.alerts.on):
            entity = {"name": shown(text), "state_topic": f"{base}/rule/{topic_part(text)}"}
            entities.append(("binary_sensor", f"rule_{_slug(text)}", entity))
            topic = f"{prefix}/{switch_topic(feed.name, text)}"
            entities.append(_switch(f"Alert {shown(text)}", f"enabled_{_slug(text)}", topic, watch))
        for component, name, entity in entities:
            unique = {"unique_id": f"{node}_{name}"}
            yield f"{component}/{node}/{name}", {**common, **unique, **entity}


def _switch(name: str, key: str, topic: str, watch: list[dict[str, str]]) -> Entity:
    """Return a switch of a feed or rule. Its commands are retained, so that they outlast the watch.

    ``watch``: availability of the watch: a feed that is off can be switched on.
    """
    switch = {
        "name": name[:_LONGEST],
        "command_topic": f"{topic}/set",
        "state_topic": f"{topic}/enabled",
        "entity_category": "config",
        "retain": True,
        "availability": watch,
    }
    return "switch", key, switch


def _snapshot(base: str, command: str, watch: list[dict[str, str]]) -> list[Entity]:
    """Return the picture of the newest alert, and the button that takes one now."""
    snapshot = {
        "name": "Snapshot",
        "image_topic": f"{base}/snapshot",
        "content_type": "image/jpeg",
        "availability": watch,
    }
    button = {"name": "Take snapshot", "command_topic": command}
    return [("image", "snapshot", snapshot), ("button", "take_snapshot", button)]


def _sound_level(base: str) -> Entity:
    level = {
        "name": "Sound level",
        "state_topic": f"{base}/level",
        "device_class": "sound_pressure",
        "unit_of_measurement": "dB",
        "state_class": "measurement",
    }
    return "sensor", "level", level


def _person_count(base: str) -> Entity:
    people = {
        "name": "Persons",
        "state_topic": f"{base}/persons",
        "value_template": "{{ value_json.now }}",
        "json_attributes_topic": f"{base}/persons",
        "state_class": "measurement",
    }
    return "sensor", "persons", people


def _place(place: Place, base: str) -> Entity:
    topic = f"{base}/{place.kind}/{topic_part(place.name)}"
    value, state_class = _COUNTS[place.kind]
    entity = {
        "name": shown(place.name),
        "state_topic": topic,
        "value_template": f"{{{{ value_json.{value} }}}}",
        "json_attributes_topic": topic,
        "state_class": state_class,
    }
    return "sensor", f"{place.kind}_{_slug(place.name)}", entity
