"""Short videos of a bright square that moves in one of a few ways, and a model for such."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from costream.weights_io.card import Card
from kit.media import make_video

WAYS = ("blink", "grow", "slide")
RATE_HZ = 8
SIZE = (64, 48)
LABELS = ("background", *WAYS)
FRONTEND = {
    "box": [32, 24],
    "widths": [8, 8, 16, 16],
    "motion_width": 4,
    "lags": [1, 4],
    "blocks": 1,
}
NETWORK = {
    "input_width": 32,
    "num_classes": len(LABELS),
    "embed_dim": 32,
    "num_heads": 4,
    "feedforward": 32,
    "window": 24,
}


def frames(way: str, seed: int, count: int) -> list[np.ndarray]:
    """Return pictures, uint8 [H, W, 3]; in the background way the square stands still."""
    rng = np.random.default_rng(seed)
    left, top = rng.integers(4, 12), rng.integers(4, 8)
    out = []
    for k in range(count):
        picture = np.full((SIZE[1], SIZE[0], 3), 40, np.uint8)
        x, side, light = int(left), 14, (200, 200, 200)
        if way == "slide":
            x += 9 * (k % 5)
        elif way == "grow":
            side += 7 * (k % 4)
        elif way == "blink" and k % 2:
            light = (250, 30, 30)
        picture[top : top + side, x : x + side] = light
        out.append(picture)
    return out


def write_clip(path: Path, parts: Sequence[tuple[str, int]], seed: int) -> Path:
    """Write a video of ways one after another, each with its number of frames."""
    pictures = [p for way, count in parts for p in frames(way, seed, count)]
    path.parent.mkdir(parents=True, exist_ok=True)
    make_video(path, len(pictures), size=SIZE, rate=RATE_HZ, pattern=lambda k, _size: pictures[k])
    return path


def write_folder(folder: Path, each: int, first_seed: int = 0) -> Path:
    """Write a folder with a folder for each way, so many clips of two seconds in each."""
    for n, way in enumerate(WAYS):
        for i in range(each):
            path = folder / way / f"{way}{i}.mp4"
            write_clip(path, [(way, 16)], first_seed + 100 * n + i)
    return folder


def write_recordings(folder: Path, count: int, first_seed: int = 0) -> tuple[Path, Path]:
    """Write videos of every way with pauses between, and their timelines."""
    media, labels = folder / "media", folder / "labels"
    labels.mkdir(parents=True)
    for n in range(count):
        rng = np.random.default_rng(first_seed + n)
        parts: list[tuple[str, int]] = [("background", 12)]
        lines = ["start_s,end_s,label\n"]
        for way in rng.permutation([*WAYS, *WAYS]).tolist():
            at = sum(steps for _, steps in parts)
            parts += [(way, 16), ("background", 12)]
            lines.append(f"{at / RATE_HZ},{(at + 16) / RATE_HZ},{way}\n")
        write_clip(media / f"r{n}.mp4", parts, first_seed + n)
        (labels / f"r{n}.mp4.timeline.csv").write_text("".join(lines), "utf-8")
    return media, labels


def write_tiny_weights(path: Path, architecture: str = "cooadtr") -> Path:
    """Write a weight file with random weights."""
    import torch

    from costream.models.build import new_network, save_model
    from costream.models.oad.tdn import TemporalDifferenceNet

    arguments = dict(NETWORK)
    if architecture == "oadtr":
        arguments |= {"depth": 1, "decoder_depth": 1, "decoder_feedforward": 32, "num_queries": 2}
    card = Card(
        name=path.stem,
        task="online action detection",
        architecture=architecture,
        arguments=arguments,
        labels=LABELS,
        rate_hz=float(RATE_HZ),
        background="background",
        frontend="tdn",
        frontend_arguments=FRONTEND,
        licence="public domain",
    )
    torch.manual_seed(0)
    frontend = TemporalDifferenceNet(**FRONTEND).eval()
    save_model(path, card, new_network(card), frontend)
    return path
