"""Small ViViTs with random weights, clips, and the dense network built of torch's own modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from costream.models.build import save_model
from costream.models.eventful.classifier import ActionModel
from costream.models.eventful.vivit.network import ViViT
from costream.models.images import Crops
from costream.weights_io.card import Card, Timeline
from kit.eventful_nets import randomise

LABELS = ("open", "cut", "wash")
SIDE = 12  # pixels: 3 x 3 tokens, and the class token
ARGUMENTS: dict[str, Any] = {
    "num_classes": len(LABELS),
    "dim": 16,
    "heads": 2,
    "depth": 3,
    "size": [3, 3],
    "window": 5,
    "temporal_depth": 2,
    "patch": 4,
    "mlp_ratio": 2,
}


def small_vivit(**options: Any) -> ViViT:
    torch.manual_seed(0)
    return randomise(ViViT(**{**ARGUMENTS, **options}))  # type: ignore


def action_card(**changes: Any) -> Card:
    settings = {
        "arguments": ARGUMENTS,
        "frontend_arguments": {"size": SIDE},
        "timeline": Timeline(threshold=0.2, min_length_s=0.1, min_gap_s=0.1),
        "rate_hz": 10.0,
        **changes,
    }
    fixed = ("tiny-actions", "action recognition", "vivit")
    return Card(*fixed, labels=LABELS, frontend="crops", **settings)


def small_model(dtype: str = "float32", **options: Any) -> ActionModel:
    return ActionModel(action_card(), small_vivit(**options), Crops(SIDE), dtype=dtype)


def write_model(path: Path) -> Path:
    """Write a weight file of the small model."""
    save_model(path, action_card(), small_vivit(), Crops(SIDE))
    return path


def clips(count: int, pictures: int, busy: float = 0.3) -> Tensor:
    """Clips [B, T, 3, H, W]: of each picture this share of the squares has moved."""
    x = torch.randn(count, 3, SIDE, SIDE)
    out = []
    for _ in range(pictures):
        moves = torch.rand(count, 1, 3, 3) < busy
        spread = moves.repeat_interleave(4, 2).repeat_interleave(4, 3)
        x = torch.where(spread, 0.9 * x + 0.5 * torch.randn_like(x), x)
        out.append(x)
    return torch.stack(out, 1)


class DenseViViT(nn.Module):
    """The factorised encoder of ``torch.nn.TransformerEncoder``, with the weights of a ViViT."""

    def __init__(self, network: ViViT) -> None:
        super().__init__()
        self.embedding = network.embedding.conv
        self.spatial = _encoder(network.spatial_model)
        self.temporal = _encoder(network.temporal_model)
        self.parts = (network.spatial_model, network.temporal_model)
        self.classifier = network.classifier

    def forward(self, clips: Tensor) -> Tensor:
        patches = self.embedding(clips.transpose(1, 2))  # [B, D, S, h, w]
        rows = patches.permute(0, 2, 3, 4, 1).flatten(2, 3)
        newest = [self._encode(rows[:, s], 0) for s in range(rows.shape[1])]
        return self.classifier(self._encode(torch.stack(newest, 1), 1))  # type: ignore[no-any-return]

    def _encode(self, rows: Tensor, part: int) -> Tensor:
        weights: Any = self.parts[part]
        x = torch.cat([weights.class_token.repeat(len(rows), 1, 1), rows], 1)
        x = x + weights.backbone.position_encoding.encoding[:, : x.shape[1]]
        return (self.spatial, self.temporal)[part](x)[:, 0]  # type: ignore[no-any-return]


def _encoder(part: Any) -> nn.TransformerEncoder:
    first, dim = part.backbone.blocks[0], part.class_token.shape[2]
    layer = nn.TransformerEncoderLayer(
        dim,
        first.heads,
        first.mlp_1.out_features,
        dropout=0.0,
        activation="gelu",
        layer_norm_eps=1e-6,
        batch_first=True,
        norm_first=True,
    )
    depth = len(part.backbone.blocks)
    norm = nn.LayerNorm(dim, eps=1e-6)
    encoder = nn.TransformerEncoder(layer, depth, norm, enable_nested_tensor=False)
    norm.load_state_dict(part.layer_norm.state_dict())
    for ours, theirs in zip(part.backbone.blocks, encoder.layers, strict=True):
        theirs.norm1.load_state_dict(ours.input_layer_norm.state_dict())
        theirs.norm2.load_state_dict(ours.mlp_layer_norm.state_dict())
        theirs.linear1.load_state_dict(ours.mlp_1.state_dict())
        theirs.linear2.load_state_dict(ours.mlp_2.state_dict())
        theirs.self_attn.out_proj.load_state_dict(ours.projection.state_dict())
        theirs.self_attn.in_proj_weight.data = ours.qkv.weight.data.clone()
        theirs.self_attn.in_proj_bias.data = ours.qkv.bias.data.clone()
    return encoder.eval()
