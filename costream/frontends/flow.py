"""Optical flow between frames with OpenCV (the extra ``flow``)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from costream.errors import ModelError

MAX_DISPLACEMENT = 20.0  # largest displacement in a flow image, in pixels; faster motion is clipped


def load_opencv(model: str) -> Any:
    """Return the OpenCV module, set to one thread. ModelError, for ``model``, if not installed."""
    try:
        opencv = import_module("cv2")
    except ImportError as error:
        raise ModelError(
            f"{model} uses optical flow, which needs OpenCV",
            hint="pip install 'costream[flow]', or use feature files",
        ) from error
    opencv.setNumThreads(1)
    return opencv


def flow_images(pictures: Sequence[npt.NDArray[np.uint8]]) -> npt.NDArray[np.uint8]:
    """Return the optical flow from each frame, uint8 [h, w, 3], to the next, as images.

    uint8 [2 (T - 1), h, w]: right and down for each pair; 0 to 255 are -20 to 20 pixels, as in the
    input of the published networks. The method is DIS (Kroeger et al., ECCV 2016). Those networks
    were trained on TV-L1, which OpenCV's wheels do not have and which gives other fields: their
    accuracy with DIS differs from that in their papers, and by how much has to be measured.
    """
    opencv = load_opencv("TSN")
    method = opencv.DISOpticalFlow_create(opencv.DISOPTICAL_FLOW_PRESET_MEDIUM)
    grey = [opencv.cvtColor(p, opencv.COLOR_RGB2GRAY) for p in pictures]
    fields = [method.calc(before, after, None) for before, after in pairwise(grey)]
    scaled = np.stack(fields).transpose(0, 3, 1, 2) * (127.5 / MAX_DISPLACEMENT) + 127.5
    flat: npt.NDArray[np.uint8] = np.clip(np.rint(scaled), 0, 255).astype(np.uint8)
    return flat.reshape(-1, *flat.shape[2:])
