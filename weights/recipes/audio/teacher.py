"""The teacher of the audio backbone, mn04, and its outputs for a sound."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from costream.core.errors import UsageError
from costream.training.audio.audio_reader import SAMPLE_RATE_HZ
from weights.recipes.common import teacher_file

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
_RATE_HZ, _FFT, _FRAME = 32_000, 1024, 320  # of the teacher's spectrogram
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
    """The teacher of the audio backbone, at a standard level of sound.

    Raises UsageError if the pack ``teachers_audio.tar`` or the package onnxruntime is missing.
    """

    def __init__(self, path: Path) -> None:
        with teacher_file(path, "mn04_as.onnx") as file:
            try:
                from onnxruntime import InferenceSession, SessionOptions
            except ImportError as error:
                raise UsageError(
                    "the recipe needs a runtime for ONNX networks", hint="pip install onnxruntime"
                ) from error
            options = SessionOptions()
            options.intra_op_num_threads = 1
            self._network = InferenceSession(str(file), options)
        with teacher_file(path, "audioset_class_labels_indices.csv") as file:
            rows = csv.DictReader(file.read_text("utf-8").splitlines())
            self.classes: Sequence[str] = [row["display_name"] for row in rows]
        with teacher_file(path, "mn04_mel.npz") as file, np.load(file) as front:
            self._mel, self._window = front["mel"].T.copy(), front["window"].astype(np.float32)

    def __call__(self, wave: npt.NDArray[np.float32]) -> Said:
        """Return the outputs for a sound [N] at 16 kHz."""
        level = float(np.sqrt(np.mean(wave**2)))
        rows = self._spectrogram(wave * (_LEVEL / level if level > _FAINT else 1.0))
        count = (len(wave) - WINDOW) // HOP + 1
        size, every = (n * _RATE_HZ // SAMPLE_RATE_HZ // _FRAME for n in (WINDOW, HOP))
        windows = [rows[k * every : k * every + size].T[None] for k in range(count)]
        logits, features = self._network.run(
            ["logits", "embedding"], {"mel": np.stack(windows).astype(np.float32)}
        )
        return Said(features, logits)

    def _spectrogram(self, wave: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the network's input [frames, 128], 100 frames a second."""
        from soxr import resample  # librosa needs it

        high = resample(wave, SAMPLE_RATE_HZ, _RATE_HZ)
        high = np.pad(high[1:] - 0.97 * high[:-1], _FFT // 2, mode="reflect")
        frames = np.lib.stride_tricks.sliding_window_view(high, _FFT)[::_FRAME]
        # NumPy's transforms take ten times as long.
        bins = torch.fft.rfft(torch.from_numpy(frames * self._window)).numpy()
        power = bins.real**2 + bins.imag**2
        rows: npt.NDArray[np.float32] = (np.log(power @ self._mel + 1e-5) + 4.5) / 5
        return rows
