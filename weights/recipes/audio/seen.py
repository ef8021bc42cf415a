"""What a user sees of sounds, by network, length and kind: the tables of the manual.

::

    python -m weights.recipes.audio.seen --packs PACKS

The clips are test clips, at most twelve of a label, of sources on which no threshold was chosen
(but for the rows of the test folds of ESC-10 and UrbanSound8K). ``cosounds`` has learnt from other
clips of these sets, ``mn04`` has not.

The last table has the false alarms of ``cosounds`` in hours of background that are made from
ambience, of which it has learnt no label, and from test clips of streets.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from costream.models.audio.efficientat import EfficientAt
from costream.models.build import build
from costream.runtime.segments import IndependentSegmenter
from costream.training.audio.audio_reader import SAMPLE_RATE_HZ, gain
from costream.weights_io.file import read_weights
from weights.recipes.audio.data import OTHER, SPEECH, SoundClip, read_clips, sound_label
from weights.recipes.audio.mn04 import Scores, chosen, right_and_wrong, step_scores
from weights.recipes.audio.pieces import cut
from weights.recipes.audio.scores import QUIET
from weights.recipes.audio.thresholds import STRICT, Network, is_first
from weights.recipes.common import FREE, RESEARCH, carry_out, parser

Labels = npt.NDArray[np.bool_]  # which of a network's labels
Shares = npt.NDArray[np.float64]  # of clips, [3]
_MOST = 12  # clips of a label
_LENGTHS_S = (0.3, 0.5, 1.0, 2.0, 5.0, 10.0)
_FEWEST = 12  # clips of a row
_BELOW_DB = (0, 5, 10)  # level of the second sound of a mixture
_MIXTURES, _MIXED_S = 100, 4.0
# Hours of background, in parts; lengths and levels of their pieces, and how long these fade.
_HOURS, _PART_S = 6, 600
_PIECES_S, _LEVELS_DB, _FADE_S = (5.0, 30.0), (-45.0, -15.0), 0.25
_STREETS = (
    *("air conditioner", "children playing", "drilling", "engine idling", "jackhammer"),
    "street music",
)
KINDS: dict[str, tuple[str, ...]] = {
    "speech": (SPEECH,),
    "people": (
        *("applause", "baby cry", "breathing", "brushing teeth", "children playing", "cough"),
        *("crowd", "crying", "drinking", "footsteps", "laughter", "person sneeze", "scream"),
        "snoring",
    ),
    "animals": (
        *("bird song", "cat", "chicken", "cow", "crickets", "crow", "dog bark", "frog"),
        *("insects", "pig", "rooster", "sheep"),
    ),
    "nature": ("fire crackling", "rain", "sea waves", "thunder", "water", "water drops", "wind"),
    "in the house": (
        *("alarm", "can opening", "clock tick", "dishes", "door creak", "door knock"),
        *("glass breaking", "keyboard typing", "mouse click", "toilet flush", "vacuum cleaner"),
        "washing machine",
    ),
    "vehicles, tools and bells": (
        *("airplane", "car horn", "chainsaw", "church bells", "engine idling", "fireworks"),
        *("hand saw", "helicopter", "siren", "train"),
    ),
    "instruments": ("musical instrument",),
}


class Listener(Protocol):
    """A network with its thresholds."""

    def shown(self, clips: Sequence[SoundClip]) -> list[Labels]:
        """Return the labels that a user sees of each clip."""

    def judge(self, label: str) -> tuple[Labels, Labels]:
        """Return which labels are right for a clip of this label, and which are wrong."""


class CoSounds:
    """``cosounds``, whose labels are those of the clips."""

    def __init__(self, path: Path) -> None:
        stored = read_weights(path)
        self._card, self._network = stored.card, Network(stored)

    def shown(self, clips: Sequence[SoundClip]) -> list[Labels]:
        """Return the labels of the timelines."""
        found = (h.shown(self._card, self._card.timeline) for h in self._network.hear(clips))
        return [np.array([name in x for name in self._card.labels]) for x in found]

    def alarms(self, clips: Iterable[SoundClip]) -> dict[str, int]:
        """Return how many segments of the labels that alarm people these clips have."""
        card, counts = self._card, dict.fromkeys(STRICT, 0)
        for clip in clips:
            (heard,) = self._network.hear([clip])
            found = heard.segments(card, card.timeline)
            counts = {name: n + found.count(name) for name, n in counts.items()}
        return counts

    def judge(self, label: str) -> tuple[Labels, Labels]:
        """Return the label alone, and all others."""
        right = np.array([name == label for name in self._card.labels])
        return right, ~right


class Mn04:
    """``mn04``, of whose labels several are right for a clip."""

    def __init__(self, path: Path) -> None:
        stored = read_weights(path)
        self._card = stored.card
        self._network = cast(EfficientAt, build(stored.card, stored.tensors)[0].eval())

    def shown(self, clips: Sequence[SoundClip]) -> list[Labels]:
        """Return the labels of the timelines."""
        rows = step_scores(self._network, clips)
        return [self._timeline(*pair) for pair in zip(clips, rows, strict=True)]

    def _timeline(self, clip: SoundClip, rows: Scores) -> Labels:
        card, end_s = self._card, len(clip.samples) / SAMPLE_RATE_HZ
        levels = np.array([card.timeline.threshold_of(name) for name in card.labels])
        opened = (rows >= levels).any(0).nonzero()[0]
        labels = [card.labels[k] for k in opened]
        about = labels, card.timeline, card.rate_hz, card.delay_s
        segmenter = IndependentSegmenter(*about, ahead=True)
        segmenter.begin(0.0)
        steps = enumerate(rows[:, opened], 1)
        found = [s for k, row in steps for s in segmenter.push(k / card.rate_hz, row)]
        shown = {s.label for s in (*found, *segmenter.finish(end_s, end_s))}
        return np.array([name in shown for name in card.labels])

    def judge(self, label: str) -> tuple[Labels, Labels]:
        """Return what is the same or a kind of it, and all but these and more general labels."""
        return right_and_wrong(label)


def seen(listener: Listener, clips: Sequence[SoundClip]) -> Shares:
    """Return the shares of clips with a right label, a wrong one and none, [3]."""
    rows = []
    for clip, found in zip(clips, listener.shown(clips), strict=True):
        right, wrong = listener.judge(sound_label(clip) or "")
        rows.append([bool((found & right).any()), bool((found & wrong).any()), not found.any()])
    out: Shares = np.array(rows, np.float64).mean(0)
    return out


def seen_of_two(
    listener: Listener, pairs: Sequence[tuple[SoundClip, SoundClip]], below_db: float
) -> Shares:
    """Return the shares of mixtures of which both are shown, one, and some wrong label, [3]."""
    mixtures = [replace(one, samples=mixed(one, two, below_db)) for one, two in pairs]
    rows = []
    for pair, found in zip(pairs, listener.shown(mixtures), strict=True):
        judged = [listener.judge(sound_label(clip) or "") for clip in pair]
        heard = sum(bool((found & right).any()) for right, _ in judged)
        wrong = found & judged[0][1] & judged[1][1]
        rows.append([heard == 2, heard == 1, bool(wrong.any())])
    out: Shares = np.array(rows, np.float64).mean(0)
    return out


def mixed(one: SoundClip, two: SoundClip, below_db: float) -> npt.NDArray[np.int16]:
    """Return the loudest seconds of two clips together, the second this much less loud."""
    waves = [cut(clip.samples, _MIXED_S).astype(np.float64) for clip in (one, two)]
    size = min(map(len, waves))
    first, second = (w[:size] / max(1.0, float(np.sqrt(np.mean(w[:size] ** 2)))) for w in waves)
    both = first + gain(-below_db) * second
    level = 8000 / max(1.0, float(np.abs(both).max()) / 4)
    out: npt.NDArray[np.int16] = np.round(level * both).astype(np.int16)
    return out


def is_background(clip: SoundClip) -> bool:
    """Return whether background is made from a clip; on none of them was a threshold chosen."""
    if clip.set == "UrbanSound8K":
        return clip.label in _STREETS and clip.part == "test" and not is_first(clip)
    return clip.label in ("", "traffic")


def background(clips: Sequence[SoundClip], rng: np.random.Generator) -> SoundClip:
    """Return ten minutes of two layers of pieces of these clips, at random levels.

    Half of the pieces are of streets, if there are such clips. Short clips are repeated.
    """
    kinds = [[c for c in clips if (c.set == "UrbanSound8K") is part] for part in (True, False)]
    kinds = [kind for kind in kinds if kind]
    size = _PART_S * SAMPLE_RATE_HZ
    both = np.zeros(size)
    for _ in range(2):
        begin = 0
        while begin < size:
            kind = kinds[rng.integers(len(kinds))]
            wave = kind[rng.integers(len(kind))].wave.astype(np.float64)
            length = min(round(rng.uniform(*_PIECES_S) * SAMPLE_RATE_HZ), size - begin)
            ramp = np.minimum(np.arange(length), np.arange(length)[::-1])
            faded = np.minimum(1.0, ramp / (_FADE_S * SAMPLE_RATE_HZ)) * np.resize(wave, length)
            level = gain(rng.uniform(*_LEVELS_DB)) / max(1e-6, float(np.sqrt(np.mean(wave**2))))
            both[begin : begin + length] += level * faded
            begin += length
    samples = np.round(32767 * both.clip(-1, 1)).astype(np.int16)
    return SoundClip(samples, "", "background", "background", "test", False)


def alarm_lines(listener: CoSounds, clips: Sequence[SoundClip]) -> Iterator[str]:
    """Yield the lines of the table of false alarms."""
    rng, some = np.random.default_rng(0), [clip for clip in clips if is_background(clip)]
    parts = (background(some, rng) for _ in range(_HOURS * 3600 // _PART_S))
    yield f"\n| sound | segments an hour, of {_HOURS} |\n|---|---|"
    for name, number in listener.alarms(parts).items():
        yield f"| {name} | {number / _HOURS:.2f} |"


def rows(clips: Sequence[SoundClip]) -> Iterator[tuple[str, list[SoundClip]]]:
    """Yield the rows of the table: a title and clips."""
    some = chosen((c for c in clips if not is_first(c) and c.set != "UrbanSound8K"), _MOST)
    for length_s in _LENGTHS_S:
        size = round(length_s * SAMPLE_RATE_HZ)
        long = [c for c in some if len(c.samples) >= 0.99 * size]
        yield f"{length_s:g} s", [replace(c, samples=cut(c.samples, length_s)) for c in long]
    yield "complete", some
    for kind, labels in KINDS.items():
        yield f"complete: {kind}", [c for c in some if sound_label(c) in labels]
    for name in ("ESC-10", "UrbanSound8K"):
        yield f"{name}, test fold", chosen((c for c in clips if c.set == name), _MOST)


def table(listeners: Sequence[Listener], clips: Sequence[SoundClip]) -> Iterator[str]:
    """Yield the lines of both tables, in Markdown."""
    known = [c for c in clips if sound_label(c) not in (None, *QUIET)]
    yield "| clips | `cosounds` | `mn04` |\n|---|---|---|"
    for title, some in rows(known):
        if len(some) >= _FEWEST:
            yield _line(f"{title} ({len(some)})", [seen(x, some) for x in listeners])
    others = [c for c in clips if sound_label(c) == OTHER and not is_first(c)]
    yield _line(f"none of the labels ({len(others)})", [seen(listeners[0], others)])
    rng = np.random.default_rng(0)
    some = chosen((c for c in known if not is_first(c) and c.set != "UrbanSound8K"), _MOST)
    pairs: list[tuple[SoundClip, SoundClip]] = []
    while len(pairs) < _MIXTURES:
        one, two = (some[k] for k in rng.integers(len(some), size=2))
        if sound_label(one) != sound_label(two):
            pairs.append((one, two))
    yield "\n| two sounds, the second at | `cosounds` | `mn04` |\n|---|---|---|"
    for below_db in _BELOW_DB:
        shares = [seen_of_two(x, pairs, below_db) for x in listeners]
        yield _line(f"-{below_db} dB ({len(pairs)})", shares)


def _line(title: str, shares: Sequence[Shares]) -> str:
    cells = ["; ".join(f"{x:.2f}" for x in row) for row in shares]
    return f"| {title} | {' | '.join(cells)} |"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; return the exit code."""
    known = parser("audio", "folder of the .tar packs", folder=RESEARCH)
    known.add_argument("--cache", type=Path, help="file for the decoded clips")
    options = known.parse_args(argv)

    def work() -> Sequence[Path]:
        clips = read_clips(options.packs, cache=options.cache)
        held = [c for c in clips if c.part in ("test", "left out") and c.set != "GTZAN"]
        ours = CoSounds(options.output / "cosounds.safetensors")
        listeners = ours, Mn04(FREE / "mn04.safetensors")
        for line in chain(table(listeners, held), alarm_lines(ours, clips)):
            print(line, flush=True)
        return []

    return carry_out(work, options.threads)


if __name__ == "__main__":
    sys.exit(main())
