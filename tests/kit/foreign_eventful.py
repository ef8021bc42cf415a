"""Small ViTDets, and the names that detectron2 and TAdaConv have for tensors of ours."""

from __future__ import annotations

import re
from typing import Any

from costream.models.eventful.vitdet import ViTDet
from kit.eventful_nets import randomise

# theirs, by ours: detectron2 counts layers of a map otherwise, with norms inside convolutions
STAGES = {
    "0": (
        "simfp_2",
        {"0": "0", "1": "1", "3": "3", "4": "4", "5": "4.norm", "6": "5", "7": "5.norm"},
    ),
    "1": ("simfp_3", {"0": "0", "1": "1", "2": "1.norm", "3": "2", "4": "2.norm"}),
    "2": ("simfp_4", {"0": "0", "1": "0.norm", "2": "1", "3": "1.norm"}),
    "3": ("simfp_5", {"1": "1", "2": "1.norm", "3": "2", "4": "2.norm"}),
}
PARTS = {
    "input_layer_norm": "norm1",
    "mlp_layer_norm": "norm2",
    "qkv": "attn.qkv",
    "projection": "attn.proj",
    "mlp_1": "mlp.fc1",
    "mlp_2": "mlp.fc2",
    "relative_position.y_embedding": "attn.rel_pos_h",
    "relative_position.x_embedding": "attn.rel_pos_w",
}


def small_vitdet(**options: Any) -> ViTDet:
    sizes: dict[str, Any] = {"size": (8, 8), "window": (4, 4), "position_size": (4, 4)}
    options = {"classes": 80, "channels": 8, "width": 12, "convolutions": 2} | options
    network = ViTDet(dim=16, heads=2, depth=3, global_blocks=(1,), **sizes, **options)
    return randomise(network)  # type: ignore[return-value]


def in_detectron2(name: str) -> str:
    if match := re.match(r"pyramid\.stages\.(\d)\.(\d)(.*)", name):
        stage, layers = STAGES[match[1]]
        return f"backbone.{stage}.{layers[match[2]]}{match[3]}"
    if match := re.match(r"backbone\.blocks\.(\d+)\.(.*?)(\.weight|\.bias)?$", name):
        return f"backbone.net.blocks.{match[1]}.{PARTS[match[2]]}{match[3] or ''}"
    name = name.replace("embedding.conv", "backbone.net.patch_embed.proj")
    return name.replace("backbone.position_encoding.encoding", "backbone.net.pos_embed")


# ours -> TAdaConv's
TADA = {
    "embedding.conv": "backbone.stem.conv1",
    "spatial_model.class_token": "backbone.cls_token",
    "spatial_model.backbone.position_encoding.encoding": "backbone.pos_embd",
    "spatial_model.layer_norm": "backbone.norm",
    "temporal_model.class_token": "backbone.cls_token_out",
    "temporal_model.backbone.position_encoding.encoding": "backbone.temp_embd",
    "temporal_model.layer_norm": "backbone.norm_out",
    "spatial_model.backbone.blocks": "backbone.layers",
    "temporal_model.backbone.blocks": "backbone.layers_temporal",
    "input_layer_norm": "norm",
    "qkv": "attn.to_qkv",
    "projection": "attn.proj",
    "mlp_layer_norm": "norm_ffn",
    "mlp_1": "ffn.net.0",
    "mlp_2": "ffn.net.3",
}


def in_tadaconv(name: str, head: str = "head.linear1") -> str:
    for ours, theirs in {**TADA, "classifier": head}.items():
        name = re.sub(rf"(^|\.){re.escape(ours)}($|\.)", rf"\1{theirs}\2", name)
    return name
