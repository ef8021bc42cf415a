"""Pictures of sound for annotated videos: the last seconds as a spectrogram, and the level."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image

from costream.core.records import AudioBlock, Picture
from costream.draw.audio_meter import AudioMeter
from costream.draw.canvas import DARK, GREY, WHITE, Canvas, fill
from costream.draw.lettering import text_width, write

WIDTH, HEIGHT = 960, 400
SHOWN_S = 10.0  # length of the spectrogram
_COLUMNS_HZ = 40.0
_METER = 44  # height of the part below the spectrogram
_FLOOR_DB = -60.0
_GREEN, _YELLOW, _RED = (80, 190, 120), (255, 200, 70), (250, 90, 90)
# From quiet to loud; the quietest is the empty page.
_SHADES = (DARK, (48, 27, 84), (126, 37, 113), (206, 67, 84), (251, 143, 66), (253, 231, 160))


class SoundPage:
    """Draws the sound of the steps added so far. ``step_s``: seconds per step."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._columns = round((SHOWN_S + step_s) * _COLUMNS_HZ)
        self._meter = AudioMeter(step_s, columns=self._columns, columns_hz=_COLUMNS_HZ)
        self._steps = 0

    def add(self, picture: Picture) -> None:
        """Add the sound of a step."""
        self._steps += 1
        if isinstance(picture.item, AudioBlock):
            self._meter.add(picture.time_s, picture.item.samples, picture.spectrum)

    def pages(self, count: int) -> list[Canvas]:
        """Return ``count`` pages that scroll through the newest step, the last one to its end."""
        spectrogram, most = self._spectrogram(), WIDTH * self._step_s / SHOWN_S
        meter = np.full((_METER, WIDTH, 3), DARK, np.uint8)
        self._draw_level(meter)
        pages = []
        for k in range(1, count + 1):
            begin = round(most * k / count)
            pages.append(np.concatenate([spectrogram[:, begin : begin + WIDTH], meter]))
        return pages

    def _spectrogram(self) -> Canvas:
        """Return the last seconds and the step before them, the newest at the right."""
        height, width = HEIGHT - _METER, WIDTH + round(WIDTH * self._step_s / SHOWN_S)
        page = np.full((height, width, 3), DARK, np.uint8)
        if not self._meter.has_spectrum:
            return page
        levels = (255 * self._meter.levels(self._columns, height)).astype(np.uint8)
        filled = min(width, round(WIDTH * self._steps * self._step_s / SHOWN_S))
        image = Image.fromarray(levels).resize((filled, height), Image.Resampling.BILINEAR)
        page[:, width - filled :] = _COLORS[np.asarray(image)]
        return page

    def _draw_level(self, page: Canvas) -> None:
        """Draw the level, the held peak as a mark, and both as numbers."""
        rms, peak = self._meter.rms_db, self._meter.held_db
        words = f"level {rms:.0f} dBFS, peak {peak:.0f}"
        left, right = 16, WIDTH - 32 - text_width("level -00 dBFS, peak -00", 15)
        fill(page, left, 17, right - left, 10, (48, 50, 57))
        fill(page, left, 17, _share(rms) * (right - left), 10, _GREEN)
        mark = _RED if peak >= -1 else _YELLOW
        fill(page, left + _share(peak) * (right - left) - 2, 14, 4, 16, mark)
        write(page, right + 16, 13, words, WHITE if peak >= -1 else GREY, 15)


def _share(db: float) -> float:
    return min(1.0, max(0.0, 1 - db / _FLOOR_DB))


def _table() -> npt.NDArray[np.uint8]:
    """Return the colour [256, 3] of each level."""
    places = np.linspace(0, 255, len(_SHADES))
    channels = [np.interp(np.arange(256), places, [s[k] for s in _SHADES]) for k in range(3)]
    return np.stack(channels, -1).astype(np.uint8)


_COLORS = _table()
