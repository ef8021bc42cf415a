"""Metrics: frames, segments, sequences, detection, calibration."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]
Integers = npt.NDArray[np.integer]
Mask = npt.NDArray[np.bool_]
