"""Makes the pictures of the README from real runs: ``python samples/make_pictures.py [FOLDER]``.

live.svg and sound.svg: the live view in the middle of a run. report.png: the report of a run, drawn
by Chromium. cost.svg: cost of a step of the temporal network of cooadtr against the window length.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.terminal_theme import TerminalTheme

import costream
from costream.core.records import Header, Picture, Record, Summary
from costream.nn.block import EncoderConfig
from costream.nn.encoder import Encoder
from costream.ui.run.state import RunState
from costream.ui.run.view import LiveLayout
from costream.ui.screen import Viewport

SAMPLES = Path(__file__).resolve().parent
WIDTH, HEIGHT = 92, 22
# Background, text, and the eight colours, dark and bright.
THEME = TerminalTheme(
    (16, 18, 22),
    (220, 222, 226),
    [
        *((16, 18, 22), (224, 84, 84), (98, 190, 112), (226, 178, 74)),
        *((98, 146, 232), (200, 120, 214), (78, 190, 200), (220, 222, 226)),
    ],
    [
        *((120, 124, 132), (255, 130, 120), (150, 226, 150), (250, 214, 120)),
        *((140, 180, 255), (230, 160, 240), (130, 226, 232), (255, 255, 255)),
    ],
)
WINDOWS = (8, 16, 32, 64, 128, 192, 256, 384, 512)


class View:
    """A sink with the lines of the live view at ``at_s`` seconds of the source."""

    def __init__(self, command: str, at_s: float) -> None:
        self._command, self._at_s, self.svg = command, at_s, ""

    def open(self, header: Header) -> None:
        self._state = RunState(header, time.monotonic())
        self._layout = LiveLayout(self._state, Path(self._command).name)

    def write(self, record: Record) -> None:
        self._state.add(record)

    def draw(self, picture: Picture) -> None:
        self._state.add_input(picture)
        if picture.time_s >= self._at_s and not self.svg:
            lines = self._layout.lines(Viewport(WIDTH, HEIGHT), time.monotonic())
            console = Console(
                record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, highlight=False
            )
            for line in lines:
                console.print(line)
            self.svg = console.export_svg(title=f"costream {self._command}", theme=THEME)

    def close(self, summary: Summary) -> None:
        pass


def with_own_fonts(svg: str) -> str:
    """Return a picture of rich without the fonts that it would fetch."""
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono")


def report_picture(target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        page, shot = Path(folder, "page.html"), Path(folder, "shot.png")
        options = {"output": folder, "format": "jsonl", "scores": True}
        costream.detect("samples/room.mp4", "cooadtr", **options).collect()
        results = Path(folder, "room.mp4.jsonl")
        make = [sys.executable, "-m", "costream", "report", results, "-o", page, "-q"]
        subprocess.run(make, check=True, capture_output=True)
        browser = ["chromium", "--headless", "--no-sandbox", "--hide-scrollbars"]
        size = ["--window-size=1000,880", f"--screenshot={shot}"]
        subprocess.run([*browser, *size, page.as_uri()], check=True, capture_output=True)
        # A palette makes it a third of the size.
        command = ["ffmpeg", "-v", "error", "-y", "-i", shot, "-vf"]
        palette = "split[a][b];[a]palettegen=max_colors=128[p];[b][p]paletteuse=dither=none"
        subprocess.run([*command, palette, target], check=True)


def cost_picture() -> str:
    """Return a chart of millions of multiply-accumulates a step against rows of the window."""
    torch.manual_seed(0)
    points, apart = [], 0.0
    for window in WINDOWS:
        encoder = Encoder(EncoderConfig(192, 8, 384, 1, window)).eval()
        points.append((window, encoder.count_macs() / 1e6, encoder.dense_macs / 1e6))
        clip = torch.randn(1, 600, 192)
        with torch.inference_mode():
            state = encoder.init_state(1)
            steps = torch.stack([encoder.forward_step(row, state) for row in clip.unbind(1)], 1)
            apart = max(apart, float((steps - encoder(clip)).abs().max()))
    most_x, most_y = points[-1][0], points[-1][2]
    left, top, wide, high = 62, 54, 500, 236

    def place(x: float, y: float) -> str:
        return f"{left + wide * x / most_x:.1f},{top + high * (1 - y / most_y):.1f}"

    def text(x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> str:
        return f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{words}</text>'

    base = top + high
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 340" width="700" height="340">',
        "<style>text{font:13px system-ui,sans-serif;fill:#444}.b{font-weight:600;font-size:15px}",
        ".d{fill:#b8400e}.c{fill:#0b6e4f}path{fill:none;stroke-width:2.5}.g{stroke:#ddd;stroke-width:1}",
        "</style>",
        '<rect width="700" height="340" rx="8" fill="#fff"/>',
        text(left - 40, 26, "Cost of a step against the length of the window", "b", "start"),
        text(
            left - 40,
            44,
            "millions of multiply-accumulates, transformer block, 192 wide",
            "",
            "start",
        ),
    ]
    for y in range(0, int(most_y) + 1, 50):
        at_y = float(place(0, y).split(",")[1])
        parts.append(f'<path class="g" d="M{left} {at_y}H{left + wide}"/>')
        parts.append(text(left - 8, at_y + 4, str(y), anchor="end"))
    parts += [text(left + wide * x / most_x, base + 20, str(x)) for x in WINDOWS if not x % 64]
    parts.append(text(left + wide / 2, base + 40, "rows of the window"))
    for column, color in ((2, "#b8400e"), (1, "#0b6e4f")):
        line = " ".join(place(point[0], point[column]) for point in points)
        parts.append(f'<path stroke="{color}" d="M{line}"/>')
    end = left + wide + 8
    parts += [
        text(end, top + 4, "window", "d", "start"),
        text(end, top + 20, "recomputed", "d", "start"),
        text(end, top + 36, f"{points[-1][2]:.0f}", "d b", "start"),
        text(end, base - 30, "continual", "c", "start"),
        text(end, base - 12, f"{points[-1][1]:.2f}", "c b", "start"),
        text(left + 16, top + 20, f"same answer: largest difference {apart:.0e}", "", "start"),
        text(left + 16, top + 38, "of 600 steps, all windows", "", "start"),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else SAMPLES).resolve()
    os.chdir(SAMPLES.parent)  # names of sources are then those of the manual
    view = View("detect samples/room.mp4", 36.0)
    costream.detect("samples/room.mp4", sinks=[view]).collect()
    (folder / "live.svg").write_text(with_own_fonts(view.svg), "utf-8")
    view = View("listen samples/street.ogg", 18.0)
    costream.listen("samples/street.ogg", sinks=[view]).collect()
    (folder / "sound.svg").write_text(with_own_fonts(view.svg), "utf-8")
    report_picture(folder / "report.png")
    (folder / "cost.svg").write_text(cost_picture(), "utf-8")


if __name__ == "__main__":
    main()
