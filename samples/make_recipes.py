"""Makes the pictures of the recipes in the manual: ``python samples/make_recipes.py [FOLDER]``.

walks.svg, classes.svg, figures.svg, fleet.svg: what commands print. camera.png: the page of a
watch, drawn by Chromium.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
import wave
from pathlib import Path

import numpy as np
from make_pictures import SAMPLES, THEME, with_own_fonts
from rich.console import Console
from rich.text import Text

FEEDS = ("door", "yard", "hall")
RATE_HZ = 16_000
LINES = 28


def printed(shown: str, *arguments: str, cwd: Path) -> str:
    """Return a picture of what a command prints first; ``shown``: as a user types it."""
    command = [sys.executable, "-m", "costream", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(SAMPLES.parent), "COLUMNS": "96"}
    merged = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, cwd=cwd, env=environment, text=True, check=True, **merged)
    console = Console(
        record=True, width=96, file=io.StringIO(), force_terminal=True, highlight=False
    )
    kept = [line for line in done.stdout.splitlines() if not line.startswith(("t=", "up "))]
    for line in kept[:LINES]:
        console.print(Text.from_ansi(line))
    return with_own_fonts(console.export_svg(title=f"costream {shown}", theme=THEME))


def write_sounds(folder: Path) -> None:
    """Write clips of three classes: a tone that rises, one that falls, and noise."""
    chance = np.random.default_rng(0)
    time_s = np.arange(3 * RATE_HZ) / RATE_HZ
    for label, slope in (("rising", 400), ("falling", -400), ("background", 0)):
        for k in range(8):
            first_hz = chance.uniform(500, 700) - 3 * min(slope, 0)
            tone = np.sin(2 * np.pi * (first_hz + slope * time_s / 2) * time_s) * (slope != 0)
            samples = 0.2 * tone + chance.normal(0, 0.03, time_s.size)
            (folder / label).mkdir(parents=True, exist_ok=True)
            with wave.open(str(folder / label / f"{label}{k}.wav"), "wb") as file:
                file.setnchannels(1)
                file.setsampwidth(2)
                file.setframerate(RATE_HZ)
                file.writeframes((samples * 32767).astype("<i2").tobytes())


def camera_picture(log: Path, target: Path) -> None:
    """Draw the upper part of the page of a watch."""
    page, shot = log / "page.html", log / "shot.png"
    make = [sys.executable, "-m", "costream", "report", str(log), "-o", str(page), "-q"]
    subprocess.run(make, check=True, capture_output=True, cwd=SAMPLES.parent)
    browser = ["chromium", "--headless", "--no-sandbox", "--hide-scrollbars"]
    size = ["--window-size=1000,720", "--virtual-time-budget=5000", f"--screenshot={shot}"]
    subprocess.run([*browser, *size, page.as_uri()], check=True, capture_output=True)
    palette = "split[a][b];[a]palettegen=max_colors=128[p];[b][p]paletteuse=dither=none"
    command = ["ffmpeg", "-v", "error", "-y", "-i", shot, "-vf", palette, target]
    subprocess.run(command, check=True)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else SAMPLES).resolve()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        (work / "samples").symlink_to(SAMPLES)
        always = ("--color", "always")
        room = ("--data", "samples/room.mp4", "--labels", "samples/room.json", "--tolerance", "1s")
        write_sounds(work / "classes")
        films = zip(FEEDS, ("room", "corridor", "room"), strict=True)
        feeds = [f'[[feed]]\nname = "{n}"\nurl = "samples/{film}.mp4"\n' for n, film in films]
        (work / "feeds.toml").write_text("".join(feeds), "utf-8")
        watch = ("watch", "feeds.toml", "-o", "log", "-m", "nanodet", "--fps", "0.5", "--realtime")
        watch += ("--on", "person for 2s", "--snapshots", "log/pictures")
        shown = {
            "walks.svg": ("detect", "samples/moves.csv", "-m", "costgcn", "-f", "table", *always),
            "classes.svg": ("train", "auto", "--data", "classes/", "-o", "mine.safetensors"),
            "figures.svg": ("evaluate", "-m", "cooadtr", *room),
            "fleet.svg": watch,
        }
        titles = {
            "walks.svg": "detect samples/moves.csv -m costgcn",
            "figures.svg": "evaluate -m cooadtr --data samples/room.mp4 ...",
            "fleet.svg": "watch feeds.toml -o log ...",
        }
        for picture, arguments in shown.items():
            title = titles.get(picture, " ".join(arguments))
            svg = printed(title, *arguments, cwd=work)
            (folder / picture).write_text(svg, "utf-8")
        camera_picture(work / "log", folder / "camera.png")


if __name__ == "__main__":
    main()
