"""Labels from projects of BORIS (.boris): the states of its observations."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from costream.core.errors import UsageError
from costream.labels.collector import LabelCollector, LabelTrack, NoLabelsError, integer, read_text
from costream.labels.recording import Label


def read_boris(path: Path, collector: LabelCollector) -> Iterator[LabelTrack]:
    """Yield the states of each observation; every second event of a behaviour ends it.

    Point events are left out. Times are relative to the recording: an observation's offset is
    subtracted. Raises NoLabelsError for other JSON.
    """
    try:
        project = json.loads(read_text(path), parse_int=integer)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"cannot be read as JSON ({error})", where=path) from error
    observations = project.get("observations") if isinstance(project, dict) else None
    if not isinstance(observations, dict):
        raise NoLabelsError("no observations of BORIS", where=path)
    points = _points(project)
    for name, observation in observations.items():
        labels: list[Label] = []
        spot = f"observation {name!r}"
        try:
            files = [str(file) for file in _files(observation)]
            labels += _states(path, spot, observation, points, collector)
            length_s = observation.get("media_info", {}).get("length", {}).get(*files[:1], None)
            duration_s = float(length_s) if length_s else None
        except (AttributeError, TypeError, ValueError, IndexError, KeyError) as error:
            collector.error(path, spot, f"not an observation of BORIS ({error!r:.60})")
            continue
        if len(files) > 1:
            collector.error(path, spot, "has several recordings; export its events as a table")
            continue
        names = (files[0].replace("\\", "/"),) if files else (name,)
        single = len(observations) == 1
        yield LabelTrack(path, names, tuple(labels), duration_s, single=single)


def _points(project: Mapping[str, Any]) -> set[str]:
    """Return the behaviours that are events without length."""
    entries = project.get("behaviors_conf")
    rows = entries.values() if isinstance(entries, dict) else ()
    return {
        str(r.get("code")) for r in rows if isinstance(r, dict) and "oint" in str(r.get("type"))
    }


def _files(observation: Mapping[str, Any]) -> list[Any]:
    """Return the recordings of the first player, which the events refer to."""
    players = observation.get("file") or {}
    return list(players.get("1") or ()) if isinstance(players, dict) else []


def _states(
    path: Path,
    spot: str,
    observation: Mapping[str, Any],
    points: set[str],
    collector: LabelCollector,
) -> Iterator[Label]:
    offset_s = float(observation.get("time offset") or 0)
    begun: dict[tuple[str, str, str], float] = {}
    events: list[Sequence[Any]] = sorted(observation["events"], key=lambda event: float(event[0]))
    for event in events:
        time_s, label = float(event[0]) - offset_s, str(event[2])
        state = (str(event[1]), label, str(event[3]))
        if label in points:
            collector.warn("events without length, left out", f"{path}, {spot}")
        elif state in begun:
            yield from collector.label(path, spot, begun.pop(state), time_s, label)
        else:
            begun[state] = time_s
    for _, label, _ in begun:
        collector.lose(path, f"{spot}, {label!r}", "a start without its stop")
