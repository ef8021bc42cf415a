"""Small tables of acted motions (a figure that waves, bends or steps), and a model for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from costream.core.layouts import BODY_15
from costream.weights_io.card import Card

ACTS = ("bend", "step", "wave")
RATE_HZ = 15
STANDING = np.array(
    [
        *([0, 0.95, 3], [0, 1.45, 3], [0, 1.65, 3]),
        *([-0.17, 1.42, 3], [-0.2, 1.15, 3], [-0.21, 0.9, 2.95]),
        *([0.17, 1.42, 3], [0.2, 1.15, 3], [0.21, 0.9, 2.95]),
        *([-0.09, 0.91, 3], [-0.1, 0.5, 3], [-0.1, 0.08, 3]),
        *([0.09, 0.91, 3], [0.1, 0.5, 3], [0.1, 0.08, 3]),
    ],
    np.float32,
)


def act(label: str, seed: int, frames: int = 36) -> np.ndarray:
    """Return float32 [T, 15, 3]: body-15, metres, facing a Kinect."""
    rng = np.random.default_rng(seed)
    time = np.arange(frames) / RATE_HZ
    out = np.repeat(STANDING[None], frames, 0) * rng.uniform(0.9, 1.1)
    beat = np.sin(2 * np.pi * rng.uniform(0.7, 1.2) * time + rng.uniform(0, 6))
    if label == "wave":
        out[:, 7] += np.array([0.15, 0.35, 0], np.float32)
        out[:, 8] += np.array([0.2, 0.95, 0], np.float32)
        out[:, 8, 0] += 0.3 * beat
    elif label == "bend":
        down = (0.5 - 0.5 * np.cos(2 * np.pi * time / time[-1]))[:, None, None]
        out[:, 1:9] += down * np.array([0, -0.55, -0.5], np.float32)
    else:
        for knee, side in ((10, 1), (13, -1)):
            lift = 0.2 * np.maximum(0, side * beat)[:, None, None]
            out[:, knee : knee + 2] += lift * np.array([0, 1, -1], np.float32)
    return (out + rng.normal(0, 0.004, out.shape)).astype(np.float32)


def write_act(path: Path, label: str, seed: int, frames: int = 36) -> Path:
    """Write an act as a wide table."""
    return write_motion(path, act(label, seed, frames))


def write_motion(path: Path, motion: np.ndarray) -> Path:
    """Write float32 [T, 15, 3] as a wide table."""
    heads = [f"{joint.replace(' ', '_')}_{axis}" for joint in BODY_15.joints for axis in "xyz"]
    rows = [
        ",".join([f"{i / RATE_HZ:.4f}", *(f"{v:.4f}" for v in frame.ravel())])
        for i, frame in enumerate(motion)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([",".join(["time", *heads]), *rows]) + "\n", "utf-8")
    return path


def write_folder(folder: Path, each: int, first_seed: int = 0) -> Path:
    """Write a folder with a folder for each act, so many files in each."""
    for k, label in enumerate(ACTS):
        for i in range(each):
            write_act(folder / label / f"{label}{i}.csv", label, first_seed + 100 * k + i)
    return folder


LABELS = ("background", *ACTS)
NETWORK = {
    "num_classes": len(LABELS),
    "joints": 15,
    "bones": [list(bone) for bone in BODY_15.bones],
    "centre": 0,
    "channels": 6,
    "persons": 1,
    "widths": [8, 16],
    "strides": [1, 2],
    "kernel": 5,
    "padding": "causal",
    "pool": 6,
}
FRONTEND = {"layout": "body-15", "axes": 3, "persons": 1, "streams": ["joint", "joint_motion"]}


def write_tiny_weights(path: Path) -> Path:
    """Write a weight file of a small network that was not trained."""
    import torch

    from costream.models.build import build, save_model
    from costream.models.skeleton.network import SkeletonNet

    card = Card(
        name="tiny",
        task="online action detection",
        architecture="costgcn",
        arguments=NETWORK,
        labels=LABELS,
        rate_hz=float(RATE_HZ),
        background="background",
        frontend="joints",
        frontend_arguments=FRONTEND,
        sample={"file": "moves.csv"},  # of other labels than those that will be learnt
        licence="public domain",
    )
    torch.manual_seed(0)
    state = {f"network.{k}": v for k, v in SkeletonNet(**NETWORK).state_dict().items()}
    save_model(path, card, *build(card, state))
    return path
