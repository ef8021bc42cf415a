"""Small models for sound with random weights, for tests."""

from __future__ import annotations

import torch

from costream.models.audio.audio_net import ContinualAudioNet
from costream.models.build import save_model
from costream.models.oad.cooadtr import CoTrans
from costream.weights_io.card import Card

WIDTHS = [4, 6, 6, 8, 8, 10, 10]
SIZES = {"input_width": 5, "embed_dim": 8, "num_heads": 2, "feedforward": 8, "num_positions": 9}


def write(folder, name, labels, seed=0, window=6, frontend_seed=0):
    """Write FOLDER/NAME.safetensors; the last label is the background."""
    arguments = {"num_classes": len(labels), "window": window, **SIZES}
    torch.manual_seed(frontend_seed)
    frontend = ContinualAudioNet(5, WIDTHS, 7)
    frontend.mel.fill(16_000, 50, 7800)
    torch.manual_seed(seed)
    card = Card(
        name=name,
        task="sound classification",
        architecture="cotrans",
        arguments=arguments,
        labels=labels,
        rate_hz=4.0,
        background=labels[-1],
        frontend="audio",
        frontend_arguments={"token_width": 5, "widths": WIDTHS, "feature_width": 7},
    )
    save_model(folder / f"{name}.safetensors", card, CoTrans(**arguments), frontend)
