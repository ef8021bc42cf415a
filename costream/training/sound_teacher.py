"""What YAMNet hears: targets that small sets of labels do not give.

YAMNet (Plakal, Ellis; Apache-2.0) knows AudioSet. Its 1024 features of every half second teach
the backbone to tell sounds apart for which there are no labels here. Teacher and student hear
the very same pieces, mixed and coloured (Beyer et al., Knowledge distillation: A good teacher is
patient and consistent, CVPR 2022). Neither the teacher's weights nor what it says are in the
shipped weights.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from costream.errors import UsageError
from costream.training.recipe import teacher_file

WINDOW = 15_600  # samples that it looks at
HOP = 8_000
WIDTH = 1024
_FEATURES = "global_average_pooling2d/Mean"


class Yamnet:
    """The teacher: sound to features, a window every HOP samples.

    Raises UsageError when the pack ``teachers.tar`` or what runs TFLite networks is not there.
    """

    def __init__(self, path: Path) -> None:
        with teacher_file(path, "yamnet_a.tflite") as file:
            try:
                from ai_edge_litert.interpreter import Interpreter
            except ImportError as error:
                raise UsageError(
                    "the recipe needs a program that runs TFLite networks",
                    hint="pip install ai-edge-litert",
                ) from error
            # Features inside the network can be read only when nothing is thrown away.
            self._network = Interpreter(
                str(file), num_threads=1, experimental_preserve_all_tensors=True
            )
        self._network.allocate_tensors()
        self._input = self._network.get_input_details()[0]["index"]
        details = self._network.get_tensor_details()
        (self._features,) = (d["index"] for d in details if d["name"].endswith(_FEATURES))

    def __call__(self, wave: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Give the square roots of the features, [windows, 1024], of a sound [N] at 16 kHz.

        They are means of what is never negative; their roots are spread more evenly.
        """
        rows = []
        for begin in range(0, len(wave) - WINDOW + 1, HOP):
            self._network.set_tensor(self._input, wave[None, begin : begin + WINDOW])
            self._network.invoke()
            rows.append(np.sqrt(self._network.get_tensor(self._features)[0]))
        return np.stack(rows)
