"""Makes the samples and the true script beside each: ``python samples/make.py [FOLDER]``.

room: video of a rendered figure that walks, sits, lies and falls in a room that training never
saw. The recipe for the shipped weights uses the same renderer with other rooms, people and
scripts. corridor: three people who walk through one. moves: a table of the joints of a figure that
waves, claps, bends and kicks; see moves.py.
street, band: synthesised sounds and short pieces of music; see sounds.py and pieces.py.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import av
import moves
import numpy as np
import pieces
import recording
import sounds
from tqdm import tqdm

from weights.recipes.action.rendering.render import (
    Appearance,
    Camera,
    Cuboid,
    RenderedScene,
    Room,
    render,
)
from weights.recipes.action.rendering.scenes import UP, VISIBLE, chair_boxes
from weights.recipes.action.rendering.script import Script

FPS = 25
SIZE = (640, 480)
SEED = 2026


def room() -> RenderedScene:
    """Return the room, the camera in its corner, the person and what she does."""
    wood, cloth = (0.5, 0.34, 0.22), (0.32, 0.42, 0.58)
    boxes = (
        Cuboid((0.9, 2.75, 0.0), (2.95, 3.7, 0.42), (0.56, 0.42, 0.3)),  # bed
        Cuboid((0.92, 2.74, 0.3), (2.93, 3.68, 0.47), (0.86, 0.85, 0.8)),
        Cuboid((1.6, 2.72, 0.3), (2.94, 3.69, 0.49), cloth),  # blanket
        Cuboid((0.98, 2.9, 0.47), (1.36, 3.55, 0.56), (0.95, 0.94, 0.9)),  # pillow
        Cuboid((3.3, 3.25, 0.0), (4.1, 3.78, 0.85), (0.62, 0.46, 0.32)),  # chest of drawers
        Cuboid((3.33, 3.235, 0.1), (4.07, 3.25, 0.42), (0.68, 0.52, 0.37)),
        Cuboid((3.33, 3.235, 0.46), (4.07, 3.25, 0.8), (0.68, 0.52, 0.37)),
        Cuboid((3.5, 3.4, 0.85), (3.62, 3.52, 1.1), (0.75, 0.33, 0.25)),  # vase
        Cuboid((1.55, 3.77, 1.35), (2.45, 3.8, 1.95), (0.25, 0.3, 0.34)),  # picture
        Cuboid((1.6, 3.755, 1.4), (2.4, 3.77, 1.9), (0.83, 0.72, 0.5)),
        Cuboid((1.6, 3.75, 1.4), (2.4, 3.755, 1.6), (0.4, 0.52, 0.4)),
        Cuboid((1.15, 0.75, 0.0), (2.95, 2.15, 0.012), (0.62, 0.3, 0.27)),  # rug
        Cuboid((1.25, 0.85, 0.012), (2.85, 2.05, 0.014), (0.72, 0.42, 0.36)),
        Cuboid((0.0, 1.9, 1.0), (0.015, 2.9, 2.0), (0.9, 0.9, 0.88)),  # window
        Cuboid((0.015, 1.97, 1.07), (0.02, 2.41, 1.93), (0.72, 0.84, 0.95)),
        Cuboid((0.015, 2.47, 1.07), (0.02, 2.83, 1.93), (0.72, 0.84, 0.95)),
        *chair_boxes(0.5, 1.45, 0.45, wood, back=True),
    )
    place = Room(
        3.8, (0.62, 0.47, 0.34), (0.86, 0.83, 0.76), boxes, 0.11, 0.22, (2.0, 1.6), 0.03, 5
    )
    camera = Camera.looking(
        np.array([3.6, -0.53, 2.22]), np.array([1.75, 1.89, 0.35]), 65, *SIZE, UP
    )
    look = Appearance(
        (0.87, 0.66, 0.53),
        (0.2, 0.12, 0.07),
        (0.16, 0.42, 0.45),
        (0.22, 0.24, 0.33),
        (0.85, 0.83, 0.8),
        height=0.98,
        sleeves=True,
        long_hair=True,
    )
    play = Script(
        np.random.default_rng(SEED),
        seat=(0.5, 1.45, 0.45, 0.0),
        bed=(1.95, 3.22, 0.48, 0.0),
        start=(5.6, 1.0),
    )
    play.away(1.5)
    play.walk(3.4, 1.3, 1.0)
    play.walk(2.2, 1.2, 0.9)
    play.sit_down(1.8)
    play.sit(5.0)
    play.stand_up(2.0)
    play.walk(2.6, 1.2, 0.9)
    play.walk(2.7, 2.0, 0.8)
    play.lie(3.4, 7.0)
    play.stand_up(3.6)
    play.walk(2.9, 1.7, 0.9)
    play.walk(2.04, 1.41, 0.9)
    play.fall(0.82, 4.0, direction=3.0)
    play.stand_up(4.0)
    play.walk(2.9, 1.2, 0.9)
    play.walk(5.6, 0.9, 1.1)
    play.away(1.5)
    return RenderedScene(place, camera, look, tuple(play.acts), ((0.9, 2.75, 2.95, 3.7, 0.48),))


def corridor() -> RenderedScene:
    """Return a corridor seen from under its ceiling, and three people who walk through it."""
    door, frame = (0.45, 0.3, 0.2), (0.86, 0.86, 0.84)
    boxes = (
        Cuboid((2.5, -2.0, 0.0), (2.7, 16.0, 2.8), (0.84, 0.82, 0.76)),  # the other wall
        Cuboid((0.0, -2.0, 2.8), (2.7, 16.0, 2.9), (0.9, 0.9, 0.9)),  # ceiling
        *(Cuboid((0.0, y, 0.0), (0.03, y + 1.0, 2.1), door) for y in (3.2, 10.6)),
        *(Cuboid((2.47, y, 0.0), (2.5, y + 1.0, 2.1), door) for y in (5.4, 12.6)),
        *(Cuboid((0.9, y, 2.77), (1.6, y + 1.2, 2.8), (1.0, 1.0, 0.95)) for y in (2.5, 7.0, 11.5)),
        Cuboid((2.1, 8.2, 0.0), (2.5, 9.4, 0.8), (0.4, 0.42, 0.45)),  # cupboard
        Cuboid((0.0, 7.4, 1.2), (0.02, 8.6, 1.9), frame),  # notice board
    )
    place = Room(15.0, (0.5, 0.52, 0.5), (0.88, 0.86, 0.8), boxes, 0.0, 0.1, (1.2, 5.0), 0.004, 9)
    camera = Camera.looking(np.array([2.1, 0.2, 2.6]), np.array([1.1, 7.0, 0.7]), 62, *SIZE, UP)
    people = (  # shirt, trousers, height; start; wait, goal; end
        ((0.7, 0.25, 0.2), (0.2, 0.22, 0.3), 1.04, (-0.7, 11.1), (2.0, 1.0, 11.0), (0.9, -1.5)),
        ((0.2, 0.35, 0.6), (0.5, 0.45, 0.38), 0.95, (3.2, 5.9), (9.0, 1.6, 6.0), (1.5, 14.0)),
        ((0.85, 0.8, 0.6), (0.15, 0.15, 0.17), 1.0, (0.6, -1.5), (19.0, 1.4, 7.5), (3.3, 13.1)),
    )
    rng, scenes = np.random.default_rng(SEED), []
    for shirt, trousers, height, start, (wait_s, x, y), end in people:
        play = Script(rng, (0, 0, 0.45, 0), (0, 0, 0.4, 0), start)
        play.away(wait_s)
        play.walk(x, y, 1.2)
        play.stand(2.5)
        play.walk(*end, 1.3)
        play.away(40.0 - sum(act.length_s for act in play.acts))
        dark = (0.1, 0.1, 0.1)
        look = Appearance((0.85, 0.65, 0.52), (0.15, 0.1, 0.07), shirt, trousers, dark, height)
        scenes.append(RenderedScene(place, camera, look, tuple(play.acts)))
    return replace(scenes[0], others=tuple(scenes[1:]))


VIDEOS = {"room": room, "corridor": corridor}


def main(folder: Path) -> None:
    """Write the samples into a folder."""
    moves.write(folder)
    recording.write(folder, "street", recording.joined(sounds.street(), "silence"))
    recording.write(folder, "band", recording.joined(pieces.band(), "no music"))
    for name in VIDEOS:
        write_video(folder, name)


def write_video(folder: Path, name: str) -> None:
    """Write NAME.mp4 (H.264) and NAME.json (the script as it can be seen)."""
    clip, labels = VIDEOS[name](), []
    front = {"movflags": "+faststart"}  # the index in front, so that a pipe can carry it
    with av.open(str(folder / f"{name}.mp4"), "w", options=front) as container:
        stream = container.add_stream("libx264", rate=FPS, options={"crf": "25", "preset": "slow"})
        stream.width, stream.height, stream.pix_fmt = *SIZE, "yuv420p"
        stream.time_base = Fraction(1, FPS)
        frames = math.floor(clip.length_s * FPS)
        for picture, label, share in tqdm(render(clip, FPS, samples=3), total=frames, disable=None):
            labels.append(label if share >= VISIBLE else "background")
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
        container.mux(stream.encode())
    changes = [0, *(k for k in range(1, len(labels)) if labels[k] != labels[k - 1]), len(labels)]
    segments = [
        {"start_s": a / FPS, "end_s": b / FPS, "label": labels[a]} for a, b in pairwise(changes)
    ]
    script = {"video": f"{name}.mp4", "fps": FPS, "frames": len(labels), "segments": segments}
    text = json.dumps(script, indent=1) + "\n"
    (folder / f"{name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
