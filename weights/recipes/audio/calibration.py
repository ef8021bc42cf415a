"""Temperature, threshold and familiarity of the audio models, and what they then show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from costream.labels.recording import UNSCORED
from costream.training.stream_calibration import StreamPredictions, at_temperature, best_temperature
from costream.weights_io.card import Card, Timeline
from weights.recipes.action.loop import logits
from weights.recipes.audio.data import (
    MUSIC,
    NO_MUSIC,
    OTHER,
    SPEECH,
    SoundClip,
    genre_label,
    sound_label,
)
from weights.recipes.audio.pieces import LabelOf
from weights.recipes.audio.scores import QUIET, RATE_HZ, Rows, predict, shown, speech_scores
from weights.recipes.common import fitted_familiarity, separation

_SURE = 0.7  # least share of the main sound of a mixture, to count as its label
_THRESHOLDS = (0.4, 0.5, 0.55, 0.6)  # above it, too little is shown
_LOW = 0.9  # of the threshold
_LENGTHS_S = (3, 10, 30)
_LEAST = 1e-4  # share of a label
_TAUS = (0.0, 0.2, 0.4, 0.6, 0.8)


@dataclass(frozen=True)
class Held:
    """Clips, their tokens [T, D] and, if needed, the outputs of the teacher [C]."""

    clips: Sequence[SoundClip]
    tokens: Sequence[Tensor]
    said: Sequence[Tensor] = ()

    def joined(self, other: Held) -> Held:
        """Return the clips of both."""
        parts = ((getattr(h, f.name) for h in (self, other)) for f in fields(self))
        return Held(*([*one, *another] for one, another in parts))

    def select(self, keep: Sequence[bool]) -> Held:
        """Return the clips, with what is known of them, for which ``keep`` is True."""
        chosen = [k for k, is_kept in enumerate(keep) if is_kept]
        parts = (getattr(self, f.name) for f in fields(self))
        return Held(*([part[k] for k in chosen] if part else () for part in parts))


def adjustment(labels: Sequence[str], shares: Tensor, tau: float) -> Tensor:
    """Return the offsets [K] of the logits of K labels that make rare labels as likely as others.

    It is -tau log p for the share p of a label in what was learnt from: logit adjustment (Menon et
    al., ICLR 2021, Eq. 9). Speech and music, which have the shares that they have in what is heard,
    stay as they are.
    """
    logs = shares.clamp(min=_LEAST).log()
    added = tau * (logs.mean() - logs)
    added[[labels.index(SPEECH), labels.index(MUSIC)]] = 0.0
    return added


def best_tau(
    head: nn.Module,
    labels: Sequence[str],
    label_of: LabelOf,
    validation: Held,
    shares: Tensor,
) -> float:
    """Return the factor of ``adjustment`` with the highest mean of the labels' recalls."""
    some = validation.select([label_of(c) is not None for c in validation.clips])
    names = np.array([label_of(c) for c in some.clips])
    rows = predict(head, some.tokens)

    def recall(tau: float) -> float:
        odds = adjustment(labels, shares, tau).exp().numpy()
        told = (x * odds / (x @ odds)[:, None] for x in rows)
        right = np.array([labels[x.mean(0).argmax()] for x in told]) == names
        return float(np.mean([right[names == name].mean() for name in np.unique(names)]))

    return max(_TAUS, key=recall)


def calibrated(
    card: Card,
    head: nn.Module,
    label_of: LabelOf,
    streams: tuple[Tensor, Tensor],
    validation: Held,
    noises: Sequence[Tensor],
) -> Card:
    """Return the card with a temperature and, of sounds, a threshold and a familiarity.

    ``streams``: tokens [N, T, D] and targets [N, T, K] of validation clips, for the temperature.
    ``noises``: tokens of made-up sounds. The threshold is that with the most clips of
    ``validation`` whose label the timeline shows, less those for which it shows another.
    """
    card = replace(card, temperature=best_temperature([stream_predictions(head, *streams)]))
    if OTHER not in card.labels:
        return card  # there are too few songs to choose a threshold
    labelled = validation.select([label_of(c) is not None for c in validation.clips])
    rows = probabilities(card, head, labelled.tokens)

    def gain(timeline: Timeline) -> float:
        told = shown(rows, labelled.clips, card.labels, label_of, timeline)
        return told["right"] - told["wrong"]

    some = [replace(card.timeline, threshold=t, low=round(_LOW * t, 3)) for t in _THRESHOLDS]
    card = replace(card, timeline=max(some, key=gain))
    inside, outside = _inside_and_outside(card, head, validation, noises)
    return replace(card, familiarity=replace(fitted_familiarity(inside, outside), rest=OTHER))


def _inside_and_outside(
    card: Card, head: nn.Module, held: Held, others: Sequence[Tensor]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the energies of clips with an event label, and of the others and ``others``."""
    labels = [sound_label(c) for c in held.clips]
    known = held.select([label not in (None, *QUIET) for label in labels])
    unknown = held.select([label == OTHER for label in labels])
    inside, outside = (
        energies(card, head, tokens) for tokens in (known.tokens, [*unknown.tokens, *others])
    )
    return inside, outside


@torch.inference_mode()
def energies(card: Card, head: nn.Module, recordings: Sequence[Tensor]) -> npt.NDArray[np.float64]:
    """Return the energy, averaged over the steps, for tokens [T, D]."""
    counted = torch.tensor([label in card.events and label != OTHER for label in card.labels])
    rows = (logits(head, x[None])[0][:, counted].logsumexp(-1) for x in recordings)
    return np.array([float(x.mean()) for x in rows])


@torch.inference_mode()
def probabilities(card: Card, head: nn.Module, recordings: Sequence[Tensor]) -> list[Rows]:
    """Return the probabilities [T, K] at the card's temperature, for tokens [T, D]."""
    rows = (logits(head, x[None])[0].softmax(-1).numpy() for x in recordings)
    return [at_temperature(x, card.temperature).astype(np.float32) for x in rows]


def described(
    card: Card, head: nn.Module, test: Held, others: Mapping[str, Sequence[Tensor]]
) -> str:
    """Return sentences on what the model shows of test clips.

    ``others``: tokens of sounds that it does not know.
    """
    if OTHER not in card.labels:
        return _of_genres(card, head, test)
    labelled = test.select([sound_label(c) not in (None, *QUIET) for c in test.clips])
    rows = probabilities(card, head, labelled.tokens)
    told = shown(rows, labelled.clips, card.labels, sound_label, card.timeline)
    every = probabilities(card, head, test.tokens)
    speech = speech_scores(every, test.clips, card.labels, sound_label)
    inside, _ = _inside_and_outside(card, head, test, ())
    areas = ", ".join(
        f"{name} {separation(inside, energies(card, head, tokens)):.2f}"
        for name, tokens in others.items()
    )
    return (
        "The timeline shows, with a threshold chosen on the eighth as well, the right label of"
        f" {told['right']:.2f} of the test clips, some wrong one of {told['wrong']:.2f}. Speech is"
        f" the best label of {speech['recall']:.3f} of the clips of speech and of"
        f" {speech['false']:.3f} of the others. Familiarity, area under the ROC curve for test"
        f" clips of its labels against {areas}."
    )


def _of_genres(card: Card, head: nn.Module, test: Held) -> str:
    songs = test.select([c.set == "GTZAN" for c in test.clips])
    rows = probabilities(card, head, songs.tokens)
    parts = []
    for length_s in _LENGTHS_S:
        steps = round(length_s * RATE_HZ)
        right = [
            card.labels[x[:steps].mean(0).argmax()] == c.label
            for x, c in zip(rows, songs.clips, strict=True)
            if len(x) >= 0.6 * steps and (c.long or length_s == _LENGTHS_S[0])
        ]
        if right:
            parts.append(f"{np.mean(right):.2f} of the first {length_s} s ({len(right)} clips)")
    still = test.select([genre_label(c) == NO_MUSIC for c in test.clips])
    told = shown(
        probabilities(card, head, still.tokens),
        still.clips,
        card.labels,
        genre_label,
        card.timeline,
    )
    quiet = f"Of {len(still.clips)} test clips without music the timeline is empty for"
    return f"Accuracy {', '.join(parts)}. {quiet} {told['empty']:.3f}."


def stream_predictions(head: nn.Module, tokens: Tensor, targets: Tensor) -> list[StreamPredictions]:
    """Return what a model says of streams [N, T, D] with targets [N, T, K]."""
    out = []
    with torch.inference_mode():
        for rows, target in zip(tokens, targets, strict=True):
            share, label = target.max(-1)
            known = torch.where(share > _SURE, label, UNSCORED)
            scores = logits(head, rows[None])[0].softmax(-1)
            out.append(StreamPredictions(scores.numpy(), known.numpy()))
    return out
