"""Translucent grid of the tokens that a step has computed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from costream.draw.canvas import Canvas

_TINT = np.array([0, 220, 255], np.uint8)

PixelSize = tuple[int, int]  # width, height


def draw_tokens(
    canvas: Canvas, updated: npt.NDArray[np.bool_], seen: PixelSize, page: PixelSize
) -> None:
    """Tint the updated tokens, bool [h, w], translucently, and more strongly at the rim.

    The model's input had the size ``seen``, padded on the right and at the bottom to whole
    tokens; it is shown with the size ``page`` in the upper left corner of ``canvas``.
    """
    side = token_side(updated, seen)
    down = _edges(updated.shape[0], page[1], seen[1], side, canvas.shape[0])
    across = _edges(updated.shape[1], page[0], seen[0], side, canvas.shape[1])
    for row, begin, end in _runs(updated):
        top, left = down[row], across[begin]
        part = canvas[top : down[row + 1], left : across[end]]
        begins = [x - left for x in across[begin:end] if x < across[end]]
        part[:] = _tinted(part, 6)
        part[:1] = _tinted(part[:1], 2)
        part[:, begins] = _tinted(part[:, begins], 2)


def _runs(updated: npt.NDArray[np.bool_]) -> list[tuple[int, int, int]]:
    """Return row, first column and end column of each run of adjacent tokens."""
    padded = np.pad(updated, ((0, 0), (1, 1))).astype(np.int8)
    change = np.diff(padded, axis=1)
    rows, begins = np.nonzero(change > 0)
    ends = np.nonzero(change < 0)[1]
    return list(zip(rows.tolist(), begins.tolist(), ends.tolist(), strict=True))


def _tinted(part: Canvas, share: int) -> Canvas:
    """Return the pixels with one part in ``share`` replaced by the tint."""
    return part - part // share + _TINT // share


def token_side(updated: npt.NDArray[np.bool_], seen: PixelSize) -> int:
    """Return the side of a token in pixels: the smallest with which [h, w] tokens cover a frame.

    Padding adds less than a token, so nothing else is possible if there are as many tokens along
    one of the sides as a token has pixels.
    """
    rows, columns = int(updated.shape[0]), int(updated.shape[1])
    return max(-(-seen[0] // columns), -(-seen[1] // rows))


def _edges(count: int, page: int, seen: int, side: int, most: int) -> list[int]:
    """Return where the tokens along a side of the page begin, and where the last one ends."""
    return [min(round(k * side * page / seen), page, most) for k in range(count + 1)]
