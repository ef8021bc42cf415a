"""A linear classifier of complete recordings, whose outputs the temporal models learn too.

A label that has few sources is known from them alone, and a model takes what they have in common
for the label. The teacher knows classes of AudioSet from very many. The classifier is therefore
kept near a reading of these classes from the tokens: its weights are V R + W, where R is the linear
map from tokens to the teacher's logits, V weighs for each label the classes that are like it, and W
is free but penalised more than V. On sources that were not learnt from it is right more often than
the temporal models are without it; they, in turn, know when a sound changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.labels.recording import SILENCE
from weights.recipes.audio.data import NO_MUSIC, OTHER

# Penalties of the sums of squares of V and W, and of R; power of the number of a label's recordings
# by which each of them counts less.
_LIKE, _FREE, _READ = 1e-3, 0.015, 10.0
_BALANCE = 0.75
_ITERATIONS = 400
_SHARE = 0.7  # of the target that is advice
_FLOOR = 1e-3  # added to standard deviations
# Label -> classes of AudioSet (Gemmeke et al., ICASSP 2017) that are it, or like it.
ALIKE: Mapping[str, tuple[str, ...]] = {
    "air conditioner": ("Air conditioning", "Mechanical fan"),
    "airplane": ("Fixed-wing aircraft, airplane", "Aircraft", "Aircraft engine", "Jet engine"),
    "alarm": (
        *("Alarm", "Alarm clock", "Smoke detector, smoke alarm", "Fire alarm", "Beep, bleep"),
        *("Buzzer", "Telephone bell ringing"),
    ),
    "applause": ("Applause", "Clapping"),
    "baby cry": ("Baby cry, infant cry",),
    "bird song": ("Bird vocalization, bird call, bird song", "Chirp, tweet", "Bird"),
    "breathing": ("Breathing",),
    "brushing teeth": ("Toothbrush",),
    "can opening": ("Burst, pop", "Zipper (clothing)"),
    "car horn": ("Vehicle horn, car horn, honking", "Toot", "Air horn, truck horn"),
    "cat": ("Cat", "Meow", "Caterwaul"),
    "chainsaw": ("Chainsaw", "Light engine (high frequency)"),
    "chicken": ("Cluck", "Chicken, rooster", "Fowl"),
    "children playing": ("Children playing", "Children shouting", "Child speech, kid speaking"),
    "church bells": ("Church bell", "Bell", "Change ringing (campanology)"),
    "clock tick": ("Tick", "Tick-tock", "Clock"),
    "cough": ("Cough", "Throat clearing"),
    "cow": ("Moo", "Cattle, bovinae"),
    "crickets": ("Cricket",),
    "crow": ("Crow", "Caw"),
    "crowd": ("Hubbub, speech noise, speech babble", "Chatter", "Crowd"),
    "crying": ("Crying, sobbing",),
    "dishes": ("Dishes, pots, and pans", "Cutlery, silverware"),
    "dog bark": ("Bark", "Dog", "Bow-wow", "Yip"),
    "door creak": ("Creak", "Squeak"),
    "door knock": ("Knock",),
    "drilling": ("Drill", "Power tool", "Dental drill, dentist's drill"),
    "drinking": ("Gargling", "Gurgling", "Slosh"),
    "engine idling": (
        *("Idling", "Engine", "Medium engine (mid frequency)", "Heavy engine (low frequency)"),
    ),
    "fire crackling": ("Fire", "Crackle"),
    "fireworks": ("Fireworks", "Firecracker"),
    "footsteps": ("Walk, footsteps",),
    "frog": ("Frog", "Croak"),
    "glass breaking": ("Shatter", "Glass", "Breaking"),
    "gun shot": ("Gunshot, gunfire", "Machine gun", "Fusillade", "Cap gun"),
    "hand saw": ("Sawing", "Filing (rasp)"),
    "helicopter": ("Helicopter",),
    "insects": ("Insect", "Fly, housefly", "Bee, wasp, etc.", "Mosquito", "Buzz"),
    "jackhammer": ("Jackhammer",),
    "keyboard typing": ("Computer keyboard", "Typing", "Typewriter"),
    "laughter": ("Laughter", "Belly laugh", "Giggle", "Chuckle, chortle"),
    "mouse click": ("Clicking", "Mouse"),
    "music": ("Music",),
    "musical instrument": (
        *("Musical instrument", "Wind instrument, woodwind instrument"),
        *("Bowed string instrument", "Brass instrument", "Plucked string instrument", "Percussion"),
    ),
    "person sneeze": ("Sneeze",),
    "pig": ("Pig", "Oink"),
    "rain": ("Rain", "Rain on surface", "Raindrop"),
    "rooster": ("Crowing, cock-a-doodle-doo",),
    "scream": ("Screaming",),
    "sea waves": ("Waves, surf", "Ocean"),
    "sheep": ("Sheep", "Bleat", "Goat"),
    "siren": (
        *("Siren", "Police car (siren)", "Ambulance (siren)", "Fire engine, fire truck (siren)"),
        "Civil defense siren",
    ),
    "snoring": ("Snoring",),
    "speech": (
        *("Speech", "Male speech, man speaking", "Female speech, woman speaking"),
        "Narration, monologue",
    ),
    "thunder": ("Thunder", "Thunderstorm"),
    "toilet flush": ("Toilet flush",),
    "train": (
        *("Train", "Rail transport", "Railroad car, train wagon", "Train horn", "Train whistle"),
    ),
    "vacuum cleaner": ("Vacuum cleaner",),
    "washing machine": ("Sewing machine", "Mechanisms", "Whir"),
    "water": (
        *("Water tap, faucet", "Pour", "Stream", "Sink (filling or washing)", "Water"),
        "Fill (with liquid)",
    ),
    "water drops": ("Drip", "Plop"),
    "wind": ("Wind", "Wind noise (microphone)"),
    # Genres
    "blues": ("Blues",),
    "classical": ("Classical music",),
    "country": ("Country",),
    "disco": ("Disco",),
    "hiphop": ("Hip hop music", "Rapping"),
    "jazz": ("Jazz",),
    "metal": ("Heavy metal",),
    "pop": ("Pop music",),
    "reggae": ("Reggae",),
    "rock": ("Rock music", "Rock and roll"),
    NO_MUSIC: ("Music",),
}


@dataclass(frozen=True)
class Adviser:
    """A linear classifier of the mean of a recording's tokens [..., D] among K labels.

    ``weight`` [D, K], ``bias`` [K]. ``counted`` bool [K]: labels that it advises on.
    """

    weight: Tensor
    bias: Tensor
    counted: Tensor

    def __call__(self, tokens: Tensor) -> Tensor:
        """Return the probabilities [..., K], 0 for labels that are not counted."""
        logits: Tensor = tokens @ self.weight + self.bias
        return logits.masked_fill(~self.counted, -torch.inf).softmax(-1)

    def layer(self, share: float) -> nn.Linear:
        """Return a layer from tokens to this share of its logits, whose mean over labels is 0.

        Those of labels that are not counted are 0.
        """
        layer = nn.Linear(*self.weight.shape)
        for own, given in ((layer.weight, self.weight.T), (layer.bias, self.bias)):
            counted = given[self.counted]
            own.data.zero_()[self.counted] = share * (counted - counted.mean(0))
        return layer.requires_grad_(False)

    def blend(self, targets: Tensor, tokens: Tensor) -> Tensor:
        """Return targets [..., K] that are mostly advice on sounds whose mean tokens are these.

        The share of targets that are not counted stays.
        """
        known = targets * self.counted
        return targets + _SHARE * (known.sum(-1, keepdim=True) * self(tokens) - known)

    def advise(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return such targets of streams [N, T, K] whose tokens are [N, T, D].

        Steps with equal targets that follow one another are a sound.
        """
        means = torch.zeros_like(tokens)
        for row, target, mean in zip(tokens, targets, means, strict=True):
            changes = (target[1:] != target[:-1]).any(-1).nonzero()[:, 0].tolist()
            bounds = [0, *(change + 1 for change in changes), len(row)]
            for begin, end in pairwise(bounds):
                mean[begin:end] = row[begin:end].mean(0)
        return self.blend(targets, means)


def fit_adviser(
    recordings: Sequence[Tensor],
    heard: Sequence[Tensor],
    named: Sequence[str | None],
    labels: Sequence[str],
    classes: Sequence[str],
    part: int,
) -> Adviser:
    """Fit a classifier to the means of recordings, and of the parts of longer ones.

    Args:
        recordings: the tokens of each, [T, D].
        heard: the teacher's logits of each, [C].
        named: the label of each; those that are not among ``labels`` help to read the teacher's
            classes alone.
        labels: K labels.
        classes: C names of the teacher's classes.
        part: length of the parts, in tokens.
    """
    parts = [(k, rows) for k, whole in enumerate(recordings) for rows in _parts(whole, part)]
    tokens = torch.stack([rows.mean(0) for _, rows in parts])
    said, names = torch.stack([heard[k] for k, _ in parts]), [named[k] for k, _ in parts]
    mean, spread = tokens.mean(0), tokens.std(0) + _FLOOR
    rows = F.pad((tokens - mean) / spread, (0, 1), value=1.0)
    said = (said - said.mean(0)) / (said.std(0) + _FLOOR)
    ridge = rows.T @ rows + _READ * torch.eye(rows.shape[1])
    read = torch.linalg.solve(ridge, rows.T @ said)
    like = torch.zeros(len(labels), len(classes))
    for row, label in zip(like, labels, strict=True):
        row[[classes.index(name) for name in ALIKE.get(label, ())]] = 1.0
    counted = torch.tensor([label not in (OTHER, SILENCE) for label in labels])
    known = [k for k, name in enumerate(names) if name in labels]
    truth = torch.tensor([labels.index(names[k] or "") for k in known])
    counts = truth.bincount(minlength=len(labels)).clamp(min=1)
    shares = counts[truth].float() ** -_BALANCE
    alike = torch.zeros_like(like, requires_grad=True)
    free = torch.zeros(len(rows[0]), len(labels), requires_grad=True)

    def whole() -> Tensor:
        weights: Tensor = read @ (alike * like).T + free
        return weights

    def loss() -> Tensor:
        each = F.cross_entropy(rows[known] @ whole(), truth, reduction="none")
        penalty = _LIKE * alike.square().sum() + _FREE * free[:-1].square().sum()
        return (each * shares).sum() / shares.sum() + penalty

    _minimise(loss, [alike, free])
    fitted = whole().detach()
    weight = fitted[:-1] / spread[:, None]
    return Adviser(weight, fitted[-1] - mean @ weight, counted)


def _parts(rows: Tensor, length: int) -> list[Tensor]:
    """Return the tokens [T, D] of a recording, and of its parts if it is longer than one."""
    parts = torch.split(rows, length) if len(rows) > length else ()
    return [rows, *(part for part in parts if len(part) >= length // 2)]


def _minimise(loss: Callable[[], Tensor], parameters: list[Tensor]) -> None:
    optimizer = torch.optim.LBFGS(parameters, max_iter=_ITERATIONS, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimizer.zero_grad()
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        return value.item()

    optimizer.step(closure)  # type: ignore[no-untyped-call]
