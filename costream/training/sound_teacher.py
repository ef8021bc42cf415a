"""Distillation targets from YAMNet, the teacher of the audio backbone.

YAMNet (Plakal, Ellis; Apache-2.0) is trained on AudioSet. Its 1024 features of every half second
and its scores of 521 classes teach the backbone to distinguish sounds that have no labels here.
Teacher and student get the same augmented pieces (Beyer et al., Knowledge distillation: A good
teacher is patient and consistent, CVPR 2022). Neither the teacher's weights nor its outputs are
in the shipped weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from costream.errors import UsageError
from weights.recipes.common import teacher_file

WINDOW = 15_600  # samples of a window
HOP = 8_000
WIDTH, CLASSES = 1024, 521
_SURE = 1e-6  # least distance of scores from 0 and 1 before the logit
_FEATURES = "global_average_pooling2d/Mean"


class Said(NamedTuple):
    """Outputs of the teacher for a sound, window by window."""

    features: npt.NDArray[np.float32]  # [windows, WIDTH], square roots
    logits: npt.NDArray[np.float32]  # [windows, CLASSES]


class Yamnet:
    """The teacher: sound to features and class scores, a window every HOP samples.

    Raises UsageError if the pack ``teachers.tar`` or the package ai-edge-litert is missing.
    """

    def __init__(self, path: Path) -> None:
        with teacher_file(path, "yamnet_a.tflite") as file:
            try:
                from ai_edge_litert.interpreter import Interpreter
            except ImportError as error:
                raise UsageError(
                    "the recipe needs a runtime for TFLite networks",
                    hint="pip install ai-edge-litert",
                ) from error
            # Inner features can be read only if all tensors are preserved.
            self._network = Interpreter(
                str(file), num_threads=1, experimental_preserve_all_tensors=True
            )
        self._network.allocate_tensors()
        self._input = self._network.get_input_details()[0]["index"]
        details = self._network.get_tensor_details()
        (self._features,) = (d["index"] for d in details if d["name"].endswith(_FEATURES))
        outputs = self._network.get_output_details()
        (self._scores,) = (d["index"] for d in outputs if d["shape"][-1] == CLASSES)

    def __call__(self, wave: npt.NDArray[np.float32]) -> Said:
        """Return the outputs for a sound [N] at 16 kHz.

        Features are means of nonnegative values; their square roots are distributed more evenly.
        """
        features, logits = [], []
        for begin in range(0, len(wave) - WINDOW + 1, HOP):
            self._network.set_tensor(self._input, wave[None, begin : begin + WINDOW])
            self._network.invoke()
            features.append(np.sqrt(self._network.get_tensor(self._features)[0]))
            scores = np.clip(self._network.get_tensor(self._scores)[0], _SURE, 1 - _SURE)
            logits.append(np.log(scores / (1 - scores)))
        return Said(np.stack(features), np.stack(logits))
