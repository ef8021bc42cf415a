"""The teacher of the audio backbone, mn04, and its outputs for a sound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from costream.core.label_sets import AUDIOSET_527
from costream.models.audio.efficientat import SAMPLE_RATE_HZ as RATE_HZ
from costream.models.audio.efficientat import EfficientAt, EfficientAtMel
from costream.models.build import build
from costream.models.catalogue import read_model
from costream.training.audio.audio_reader import SAMPLE_RATE_HZ

# Distillation targets from mn04, the teacher of the audio backbone.
#
# mn04 (Schmid, Koutini, Widmer, Efficient large-scale audio tagging via transformer-to-CNN
# knowledge distillation, ICASSP 2023; MIT) is trained on AudioSet. Its features and its scores of
# 527 classes teach the backbone to distinguish sounds that have no labels here. Teacher and
# student get the same augmented pieces (Beyer et al., Knowledge distillation: A good teacher is
# patient and consistent, CVPR 2022). Neither the teacher's weights nor its outputs are in those
# of the student; the teacher itself is mn04.safetensors (mn04.py).


WINDOW = 24_000  # samples of a window
HOP = 8_000
WIDTH, CLASSES = 384, 527
_EARLIER = 239  # samples before the sound, so that frames, but for the first, are those published
WINDOW_FRAMES = 150  # of the teacher's spectrogram, 10 ms each
_LEVEL = 0.1  # root mean square of what the teacher hears, unless it is all but silent
_FAINT = 1e-3


class Said(NamedTuple):
    """Outputs of the teacher for a sound, window by window."""

    features: npt.NDArray[np.float32]  # [windows, WIDTH]
    logits: npt.NDArray[np.float32]  # [windows, CLASSES]


class Teacher(Protocol):
    """A network that a student is trained on; ``classes``: the names of its CLASSES."""

    classes: Sequence[str]

    def __call__(self, wave: npt.NDArray[np.float32]) -> Said:
        """Return the outputs for a sound [N] at 16 kHz, a window every HOP samples."""


class Mn04:
    """The teacher of the audio backbone, mn04 of the package, at a standard level of sound.

    Raises ModelError if its weights are missing.
    """

    classes: Sequence[str] = AUDIOSET_527.names

    def __init__(self) -> None:
        stored = read_model("mn04")
        self._network = cast(EfficientAt, build(stored.card, stored.tensors)[0].eval())
        self._spectrum = EfficientAtMel(WINDOW_FRAMES)

    @torch.inference_mode()
    def __call__(self, wave: npt.NDArray[np.float32]) -> Said:
        """Return the outputs for a sound [N] at 16 kHz."""
        from soxr import resample  # librosa needs it

        level = float(np.sqrt(np.mean(wave**2)))
        wave = wave * (_LEVEL / level if level > _FAINT else 1.0)
        high = torch.from_numpy(resample(wave, SAMPLE_RATE_HZ, RATE_HZ)).float()
        high = F.pad(high, (_EARLIER, -(len(high) + _EARLIER) % self._spectrum.block))
        rows = self._spectrum(high.view(1, -1, self._spectrum.block)).flatten(0, 2)[1:]
        count = (len(wave) - WINDOW) // HOP + 1
        every = WINDOW_FRAMES * HOP // WINDOW
        windows = rows.unfold(0, WINDOW_FRAMES, every)[:count].transpose(1, 2)
        features = self._network.features(windows)
        return Said(features.numpy(), self._network.classify(features).numpy())
