"""Non-maximum suppression of one box after another, compiled by Numba; see ``suppression.py``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from costream.nn.compiled import F32, MATRIX, VECTOR, compiled

_ZERO = F32(0)


@compiled(MATRIX, VECTOR, types.int64[::1], F32, types.bool_[::1], exact=True)
def decide(boxes: Any, sizes: Any, groups: Any, threshold: Any, stays: Any) -> None:
    """Set ``stays`` [n] to which of boxes [n, 4], the best first, stay.

    ``sizes`` [n] are their areas, ``groups`` [n] what they compete in. The arithmetic is that of
    ``pairwise_iou``, so that the results are the same.
    """
    kept, count = np.empty(len(boxes), np.int64), 0
    for k in range(len(boxes)):
        box, free = boxes[k], True
        for n in range(count):
            other = boxes[kept[n]]
            if groups[kept[n]] != groups[k]:
                continue
            width = min(box[2], other[2]) - max(box[0], other[0])
            height = min(box[3], other[3]) - max(box[1], other[1])
            if width > _ZERO and height > _ZERO:
                shared = width * height
                if shared / (sizes[kept[n]] + sizes[k] - shared) > threshold:
                    free = False
                    break
        stays[k] = free
        if free:
            kept[count] = k
            count += 1
