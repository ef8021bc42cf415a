"""Short recordings of three kinds of sound, and a model for such that was not trained."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np

from costream.weights_io.card import Card

KINDS = ("click", "hiss", "tone")
RATE_HZ = 16_000
LABELS = ("silence", *KINDS)
FRONTEND = {
    "token_width": 16,
    "widths": [4, 8, 8, 12, 12, 16, 16],
    "feature_width": 24,
}
NETWORK = {
    "input_width": 16,
    "num_classes": len(LABELS),
    "embed_dim": 32,
    "num_heads": 4,
    "feedforward": 32,
    "window": 24,
    "num_positions": 32,
}


def sound(kind: str, seed: int, seconds: float = 2.0) -> np.ndarray:
    """Return float32 samples [N] of clicks, noise or a tone."""
    rng = np.random.default_rng(seed)
    count = round(seconds * RATE_HZ)
    if kind == "click":
        out = 0.002 * rng.standard_normal(count)
        out[int(rng.integers(800)) :: int(rng.integers(1500, 3000))] = rng.uniform(0.6, 0.9)
    elif kind == "hiss":
        out = rng.uniform(0.05, 0.2) * rng.standard_normal(count)
    else:
        time = np.arange(count) / RATE_HZ
        out = rng.uniform(0.1, 0.4) * np.sin(2 * np.pi * rng.uniform(300, 900) * time)
    return np.clip(out, -1, 1).astype(np.float32)


def write_sound(path: Path, kind: str, seed: int, seconds: float = 2.0) -> Path:
    """Write a WAV file of 16 bits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE_HZ)
        file.writeframes((sound(kind, seed, seconds) * 32767).astype("<i2").tobytes())
    return path


def write_folder(folder: Path, each: int, first_seed: int = 0) -> Path:
    """Write a folder with a folder for each kind, so many files in each."""
    for k, kind in enumerate(KINDS):
        for i in range(each):
            write_sound(folder / kind / f"{kind}{i}.wav", kind, first_seed + 100 * k + i)
    return folder


def write_tiny_weights(
    path: Path, labels: tuple[str, ...] = LABELS, architecture: str = "cotrans", **more: object
) -> Path:
    """Write a weight file with random weights; the card has the file's name.

    ``more``: arguments of the architecture.
    """
    import torch

    from costream.models.audio.audio_net import ContinualAudioNet
    from costream.models.build import new_network, save_model

    torch.manual_seed(0)
    arguments = {**NETWORK, "num_classes": len(labels), **more}
    frontend = ContinualAudioNet(**FRONTEND)
    bands = torch.arange(257)[:, None] // 4 == torch.arange(64)  # librosa would take seconds
    frontend.mel.matrix.copy_(bands.float())
    frontend.centre.fill_(-5.0)
    frontend.spread.fill_(4.0)
    card = Card(
        name=path.stem,
        task="sound classification",
        architecture=architecture,
        arguments=arguments,
        labels=labels,
        rate_hz=4.0,
        delay_s=0.75,
        background=labels[0],
        frontend="audio",
        frontend_arguments=FRONTEND,
        licence="public domain",
    )
    save_model(path, card, new_network(card), frontend)
    return path
