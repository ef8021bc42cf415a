"""What YAMNet hears in the training clips: targets that small sets of labels do not give.

YAMNet (Plakal, Ellis; Apache-2.0) knows AudioSet. Its 1024 features of every half second teach
the backbone to tell sounds apart for which there are no labels here. It is needed for nothing
else: neither its weights nor what it says are in the shipped weights.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from costream.errors import UsageError
from costream.training.sound_packs import Clip

WINDOW = 15_600  # samples that it looks at
HOP = 8_000
CENTRE = WINDOW / 2  # of the first window
WIDTH = 1024
_FEATURES = "global_average_pooling2d/Mean"


def teach(folder: Path, clips: Sequence[Clip]) -> list[npt.NDArray[np.float32]]:
    """Give YAMNet's features [windows, 1024] of each clip, a window every HOP samples.

    Clips shorter than a window are followed by zeros. Raises UsageError when the pack
    ``teachers.tar`` or a program that runs TFLite networks is not there.
    """
    network = _Yamnet(folder / "teachers.tar")
    bar = tqdm(clips, desc="teacher", file=sys.stderr, disable=None, leave=False)
    return [network(clip.wave) for clip in bar]


class _Yamnet:
    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise UsageError("the teacher is not there", where=path)
        try:
            from ai_edge_litert.interpreter import Interpreter
        except ImportError as error:
            raise UsageError(
                "the recipe needs a program that runs TFLite networks",
                hint="pip install ai-edge-litert",
            ) from error
        with tarfile.open(path) as archive, tempfile.TemporaryDirectory() as place:
            archive.extract("teachers/yamnet_a.tflite", place, filter="data")
            # Features inside the network can be read only when nothing is thrown away.
            self._network = Interpreter(
                f"{place}/teachers/yamnet_a.tflite",
                num_threads=1,
                experimental_preserve_all_tensors=True,
            )
        self._network.allocate_tensors()
        self._input = self._network.get_input_details()[0]["index"]
        details = self._network.get_tensor_details()
        (self._features,) = (d["index"] for d in details if _FEATURES in d["name"])

    def __call__(self, wave: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        wave = np.pad(wave, (0, max(0, WINDOW - len(wave))))
        rows = []
        for begin in range(0, len(wave) - WINDOW + 1, HOP):
            self._network.set_tensor(self._input, wave[None, begin : begin + WINDOW])
            self._network.invoke()
            rows.append(self._network.get_tensor(self._features)[0].copy())
        return np.stack(rows)
