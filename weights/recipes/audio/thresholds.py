"""Thresholds of ``cosounds.safetensors``, from what its labels are worth to a user.

::

    python -m weights.recipes.audio.thresholds --packs PACKS

Run it after ``weights.recipes.audio.train``; the network stays as it is. The clips that it has not
learnt from are divided by source. On one half the thresholds are chosen; on the other half is
counted what a user sees.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

from costream.models.build import build
from costream.runtime.segments import Segmenter
from costream.training.audio.audio_reader import SAMPLE_RATE_HZ
from costream.training.card_text import card_text, sequence_table
from costream.weights_io.card import Card, Timeline
from costream.weights_io.file import Weights, read_weights, write_weights
from weights.recipes.audio.calibration import probabilities
from weights.recipes.audio.data import OTHER, SPEECH, SoundClip, read_clips, sound_label
from weights.recipes.audio.pieces import cut
from weights.recipes.audio.scores import QUIET, RATE_HZ, Rows, clip_tokens, speech_scores
from weights.recipes.common import RESEARCH, carry_out, parser

# Labels that alarm people.
STRICT = ("baby cry", "glass breaking", "gun shot", "scream", "siren")
_LEVELS = (0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9)
_SPARE = 2  # levels between false alarms of a label of STRICT and its threshold
_LEAST_S = (0.5, 0.75)  # length of a segment
_LOW = 0.5  # a segment lasts while its label is more probable than all others together
_SPEECH = 0.6  # words are short, and nothing else is taken for speech
_SHORT_S = (0.3, 0.5, 0.9)
_SHORT_LEVELS = (0.3, 0.4, 0.5, 0.6, 0.7)  # thresholds of recordings of less than a second
# Largest shares of clips with a wrong label, and of sounds without a label with any; they are kept
# with a standard error to spare, as the other half has other sounds.
_MOST_WRONG, _MOST_LABELLED = 0.1, 0.2
_NOTE = "The timeline shows"  # the sentences of the card from here on are replaced
_NEXT = "Speech is the best"
_SET = "UrbanSound8K"  # its labels are confused with one another


@dataclass(frozen=True)
class Heard:
    """A clip and the probabilities [T, K] of its steps."""

    clip: SoundClip
    rows: Rows

    @property
    def label(self) -> str | None:
        """Its label; OTHER if it has none of the model's."""
        return sound_label(self.clip)

    @property
    def is_first(self) -> bool:
        """Whether its source is in the half on which the threshold is chosen."""
        return is_first(self.clip)

    def shown(self, card: Card, timeline: Timeline) -> set[str]:
        """Return the labels of its timeline, as ``costream listen`` shows them."""
        return {*self.segments(card, timeline)} - {*QUIET}

    def segments(self, card: Card, timeline: Timeline) -> list[str]:
        """Return the labels of the segments of its timeline."""
        end_s = len(self.clip.samples) / SAMPLE_RATE_HZ
        line = timeline.of_length(end_s)
        segmenter = Segmenter(card.labels, line, RATE_HZ, card.delay_s, ahead=True)
        segmenter.begin(0.0)
        found = [s for k, row in enumerate(self.rows, 1) for s in segmenter.push(k / RATE_HZ, row)]
        return [s.label for s in (*found, *segmenter.finish(end_s, end_s))]


def is_first(clip: SoundClip) -> bool:
    """Return whether its source is in the half on which the threshold is chosen."""
    return zlib.crc32(f"half {clip.group}".encode()) % 2 == 0


class Network:
    """The network of a weight file, applied to complete clips."""

    def __init__(self, stored: Weights) -> None:
        self._card = stored.card
        head, frontend = build(stored.card, stored.tensors)
        assert frontend is not None
        self._head, self._frontend = head.float().eval(), frontend.float()

    def hear(self, clips: Sequence[SoundClip]) -> list[Heard]:
        """Return the clips with the probabilities of their steps."""
        tokens = clip_tokens(self._frontend, clips)
        rows = probabilities(self._card, self._head, tokens)
        return [Heard(*pair) for pair in zip(clips, rows, strict=True)]


@dataclass(frozen=True)
class Shares:
    """Shares of clips with the right label, a wrong one and none, and how many clips."""

    right: float
    wrong: float
    nothing: float
    clips: int


def count(heard: Sequence[Heard], shown: Sequence[set[str]]) -> Shares:
    """Return the shares of clips that have a label."""
    rows = [
        (one.label in found, bool(found - {one.label}), not found)
        for one, found in zip(heard, shown, strict=True)
        if one.label not in (None, *QUIET)
    ]
    right, wrong, nothing = np.mean(rows, 0).tolist()
    return Shares(right, wrong, nothing, len(rows))


def labelled(heard: Sequence[Heard], shown: Sequence[set[str]]) -> tuple[int, int]:
    """Return how many clips of sounds that have none of the labels get one, and of how many."""
    found = [bool(x) for one, x in zip(heard, shown, strict=True) if one.label == OTHER]
    return sum(found), len(found)


def alarms(heard: Sequence[Heard], shown: Sequence[set[str]], name: str) -> tuple[int, ...]:
    """Return how many clips of a label are shown as it, of how many, and the same of others."""
    found = [(one.label == name, name in x) for one, x in zip(heard, shown, strict=True)]
    right, wrong = ([x for is_it, x in found if is_it is part] for part in (True, False))
    return sum(right), len(right), sum(wrong), len(wrong)


def choose(heard: Sequence[Heard], card: Card, short: Sequence[Heard] = ()) -> Timeline:
    """Return the timeline that shows most of those with few mistakes, else that with fewest.

    A label of STRICT has a threshold well above those with a false alarm, at most the highest.
    ``short``: clips cut to less than a second, which have a threshold of their own.
    """

    def at(level: float, least_s: float, **own: float) -> Timeline:
        line = replace(card.timeline, threshold=level, low=_LOW, min_length_s=least_s, short=None)
        return replace(line, thresholds={OTHER: 1.0, SPEECH: _SPEECH, **own})

    settings = list(product(_LEVELS, _LEAST_S))  # the first ones show most
    shown = {some: [one.shown(card, at(*some)) for one in heard] for some in settings}
    good = (some for some in settings if _has_few_mistakes(heard, shown[some]))
    best, least_s = next(good, settings[-1])
    strict = {}
    for name in STRICT:
        loud = [k for k, x in enumerate(_LEVELS) if alarms(heard, shown[x, least_s], name)[2]]
        strict[name] = _LEVELS[min(max(loud) + 1 + _SPARE, len(_LEVELS) - 1)] if loud else best
    line = at(best, least_s, **{name: level for name, level in strict.items() if level > best})
    for level in _SHORT_LEVELS if short else ():
        lower = replace(line, short=level)
        if level < best and _has_few_mistakes(short, [one.shown(card, lower) for one in short]):
            return lower
    return line


def _has_few_mistakes(heard: Sequence[Heard], shown: Sequence[set[str]]) -> bool:
    shares, (wrong, others) = count(heard, shown), labelled(heard, shown)
    return (
        _at_most(shares.wrong, shares.clips) <= _MOST_WRONG
        and _at_most(wrong / max(1, others), others) <= _MOST_LABELLED
    )


def _at_most(share: float, clips: int) -> float:
    """Return the share of so many clips, and its standard error more."""
    return share + float(np.sqrt(share * (1 - share) / max(1, clips)))


def described(heard: Sequence[Heard], short: Sequence[Sequence[Heard]], card: Card) -> str:
    """Return sentences on what a user sees of these clips, and of them cut short."""
    elsewhere = [one for one in heard if one.clip.set != _SET]
    titles = ("of all clips", f"without {_SET}", *(f"cut to {s:g} s" for s in _SHORT_S))
    parts = []
    for k, (title, clips) in enumerate(zip(titles, (heard, elsewhere, *short), strict=True)):
        found = _shown(clips, card)
        shares, (wrong, others) = count(clips, found), labelled(clips, found)
        parts.append(
            f"{title} the right label for {shares.right:.2f}, a wrong one for {shares.wrong:.2f},"
            f" nothing for {shares.nothing:.2f} ({shares.clips})"
            + (f", {wrong} of {others} without a label get one" if k > 1 else "")
            + (f", and {_of_speech(clips, card)}" if k > 1 else "")
        )
    found = _shown(heard, card)
    wrong, others = labelled(heard, found)
    for name in STRICT:
        right, clips_of_it, false, rest = alarms(heard, found, name)
        parts.append(f"{name} for {right} of {clips_of_it}, falsely for {false} of {rest}")
    return (
        f"{_NOTE}, on the half of these sources on which its thresholds were not chosen:"
        f" {'; '.join(parts)}. Of {others} clips with none of its labels {wrong} get one."
    )


def _of_speech(heard: Sequence[Heard], card: Card) -> str:
    rows = [one.rows for one in heard]
    found = speech_scores(rows, [one.clip for one in heard], card.labels, sound_label)
    return (
        f"speech is the best label of {found['recall']:.3f} of it, {found['false']:.3f} of others"
    )


def _shown(heard: Sequence[Heard], card: Card) -> list[set[str]]:
    return [one.shown(card, card.timeline) for one in heard]


def make(packs: Path, folder: Path, cache: Path | None) -> Sequence[Path]:
    """Write the thresholds and the sentences into the weights' card; return the path."""
    path = folder / "cosounds.safetensors"
    stored = read_weights(path)
    network = Network(stored)
    clips = [c for c in read_clips(packs, cache=cache) if c.part in ("test", "left out")]
    heard = network.hear([c for c in clips if c.set != "GTZAN"])
    first, second = ([h for h in heard if h.is_first is part] for part in (True, False))

    def cut_to(length_s: float, some: Sequence[Heard]) -> list[Heard]:
        known = [h.clip for h in some if h.clip.set != _SET]
        return network.hear([replace(c, samples=cut(c.samples, length_s)) for c in known])

    chosen_on = [one for length_s in _SHORT_S for one in cut_to(length_s, first)]
    card = replace(stored.card, timeline=choose(first, stored.card, chosen_on))
    short = [cut_to(length_s, second) for length_s in _SHORT_S]
    before, _, rest = card.split.partition(_NOTE)
    note = f"{described(second, short, card)} {_NEXT}{rest.partition(_NEXT)[2]}"
    card = replace(card, split=before + note)
    write_weights(path, card, stored.tensors)
    path.with_suffix(".md").write_text(card_text(card, sequence_table), encoding="utf-8")
    return [path]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the recipe from the command line; return the exit code."""
    known = parser("audio", "folder of the .tar packs", folder=RESEARCH)
    known.add_argument("--cache", type=Path, help="file for the decoded clips")
    options = known.parse_args(argv)
    return carry_out(lambda: make(options.packs, options.output, options.cache), options.threads)


if __name__ == "__main__":
    sys.exit(main())
