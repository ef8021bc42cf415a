"""Texts of the model cards of the shipped audio models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weights.recipes.audio.data import SoundClip

# Title of a test set -> which of the held-out clips belong to it.
TITLES: dict[str, Callable[[SoundClip], bool]] = {
    "ESC-10, fold 4": lambda c: c.set == "ESC-10",
    "UrbanSound8K, fold 3": lambda c: c.set == "UrbanSound8K",
    "GTZAN, songs 31 to 40 of each genre, 2 to 3 s": lambda c: (
        c.set == "GTZAN" and not c.long and _number(c) > 30
    ),
    "GTZAN, songs 0 and 5 of each genre, 15 to 30 s": lambda c: c.set == "GTZAN" and c.long,
}


def _number(clip: SoundClip) -> int:
    return int(clip.group.rpartition(".")[2])


_DATA = (
    "ESC-10 (folds 1 to 3), UrbanSound8K (folds 1 and 2; fold 3 is incomplete in this copy) and"
    " excerpts of GTZAN (songs 1 to 4, 6, 7 and 10 to 30 of each genre), resampled to 16 kHz;"
    " an eighth of the sources kept from the backbone to develop with. Varied in speed, level,"
    " colour and noise, two at a time, joined into streams; made-up silence. Features and class"
    " scores of YAMNet (AudioSet) on the same clips were further targets of the backbone. Weights"
    " are rounded to half precision."
)
_SPLIT = (
    "By official fold and by song; a Freesound source that is in both sets of sounds is on one"
    " side. Widths, rates and lengths of training were chosen on an eighth of the training"
    " sources and by what they cost; the temporal models then learnt from that eighth too. While"
    " the recipe was developed, earlier backbones were scored on the test clips four times, one of"
    " them with two dozen ways to train what is behind it, and linear classifiers of what the"
    " teacher says nine times; none of this was chosen by that."
)
_LICENCE = (
    "Research use only, not commercial: UrbanSound8K (CC BY-NC 3.0), ESC-10 (CC BY 3.0; clips"
    " CC0, CC BY or Sampling+, from Freesound), GTZAN (commercial recordings, research use)."
    " Teacher: YAMNet (Apache-2.0)."
)
ABOUT: dict[str, dict[str, Any]] = {
    "cotrans": {
        "description": (
            "The genre of music, each quarter of a second: ten genres of GTZAN, or no music."
        ),
        "trained_on": _DATA,
        "split": _SPLIT,
        "limits": (
            "GTZAN has 100 songs a genre of before 2002, with mislabelled ones and the same artists"
            " on both sides, so its figures are optimistic; here 27 songs a genre were learnt from."
            " Music of other kinds gets one of the ten labels. Rock, country, disco and reggae are"
            " taken for one another. Speech is not known and may be taken for music."
        ),
        "licence": _LICENCE,
    },
    "cosounds": {
        "description": (
            "Sounds of the environment, each quarter of a second: the classes of ESC-10 and"
            " UrbanSound8K (dog bark is one; street music and songs are music), and silence."
        ),
        "trained_on": _DATA,
        "split": _SPLIT,
        "limits": (
            "Everything that is to be heard gets one of its labels: speech, for one, is not known."
            " Air conditioners, idling engines, drills and jackhammers are taken for one another,"
            " which is why UrbanSound8K's figure is low (157 of its 387 clips are ten recordings of"
            " the first two): do not rely on these four."
            " Of several sounds at once only the strongest is told. Not an alarm: do not rely on"
            " it for sirens, shots or crying babies."
        ),
        "licence": _LICENCE,
    },
}
