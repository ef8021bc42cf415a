"""Small ViTDets with the names of detectron2, TAdaConv's names, a small YOLOS and RF-DETR."""

from __future__ import annotations

import itertools
import re
from typing import Any

import torch
from torch import Tensor

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


YOLOS_TABLE = (3, 5)  # patches of its tables of positions


def yolos(middle: bool = False, dim: int = 128, depth: int = 3) -> dict[str, Tensor]:
    """A small YOLOS with the names of the package transformers."""
    rows, out = 1 + YOLOS_TABLE[0] * YOLOS_TABLE[1] + 6, {}

    def layer(name: str, *shape: int) -> None:
        out[f"{name}.weight"] = torch.randn(*shape) / shape[-1] ** 0.5
        out[f"{name}.bias"] = torch.randn(shape[0]) / 4

    layer("vit.embeddings.patch_embeddings.projection", dim, 3, 16, 16)
    out["vit.embeddings.cls_token"] = torch.randn(1, 1, dim)
    out["vit.embeddings.detection_tokens"] = torch.randn(1, 6, dim)
    out["vit.embeddings.position_embeddings"] = torch.randn(1, rows, dim)
    if middle:
        shape = (depth - 1, 1, rows, dim)
        out["vit.encoder.mid_position_embeddings"] = torch.randn(*shape) / 4
    norms = ["vit.layernorm"]
    for k in range(depth):
        block = f"vit.encoder.layer.{k}"
        for part in ("attention.query", "attention.key", "attention.value", "output.dense"):
            layer(f"{block}.attention.{part}", dim, dim)
        layer(f"{block}.intermediate.dense", 4 * dim, dim)
        layer(f"{block}.output.dense", dim, 4 * dim)
        norms += [f"{block}.layernorm_before", f"{block}.layernorm_after"]
    for name in norms:
        out[f"{name}.weight"] = 1 + torch.randn(dim) / 8
        out[f"{name}.bias"] = torch.randn(dim) / 8
    for name, width in (("class_labels_classifier", 92), ("bbox_predictor", 4)):
        for k in range(3):
            layer(f"{name}.layers.{k}", width if k == 2 else dim, dim)
    return out


class _Drawn(dict[str, Tensor]):
    """Random tensors by name."""

    def layer(self, name: str, *shape: int, bias: bool = True, mark: str = ".") -> None:
        self[f"{name}{mark}weight"] = torch.randn(*shape) / shape[1] ** 0.5
        if bias:
            self[f"{name}{mark}bias"] = torch.randn(shape[0]) / 4

    def norms(self, *names: str, width: int) -> None:
        for name in names:
            self[f"{name}.weight"] = 1 + torch.randn(width) / 8
            self[f"{name}.bias"] = torch.randn(width) / 8

    def mlp(self, name: str, *widths: int) -> None:
        for k, pair in enumerate(itertools.pairwise(widths)):
            self.layer(f"{name}.layers.{k}", *pair[::-1])


RF_CHANNELS = 64
RF_COLUMNS = 91
RF_QUERIES = 6
RF_HIDDEN = 32


def rf_detr(dim: int = 64, depth: int = 4, side: int = 4, groups: int = 2) -> dict[str, Tensor]:
    """A small RF-DETR with the names of the package rfdetr: 6 queries, 64 channels, two layers."""
    out = _Drawn()
    _draw_rf_backbone(out, dim, depth, side)
    _draw_rf_projector(out, dim, depth)
    for k in range(2):
        _draw_rf_decoder_layer(out, f"transformer.decoder.layers.{k}")
    channels = RF_CHANNELS
    out.norms("transformer.decoder.norm", width=channels)
    out.mlp("transformer.decoder.ref_point_head", 2 * channels, channels, channels)
    for k in range(groups):  # the first serves after training
        out.layer(f"transformer.enc_output.{k}", channels, channels)
        out.norms(f"transformer.enc_output_norm.{k}", width=channels)
        out.mlp(f"transformer.enc_out_bbox_embed.{k}", channels, channels, channels, 4)
        out.layer(f"transformer.enc_out_class_embed.{k}", RF_COLUMNS, channels)
    out.layer("class_embed", RF_COLUMNS, channels)
    out.mlp("bbox_embed", channels, channels, channels, 4)
    out["refpoint_embed.weight"] = torch.randn(groups * RF_QUERIES, 4) / 8
    out["query_feat.weight"] = torch.randn(groups * RF_QUERIES, channels)
    return dict(out)


def _draw_rf_backbone(out: _Drawn, dim: int, depth: int, side: int) -> None:
    backbone = "backbone.0.encoder.encoder"
    embeddings = f"{backbone}.embeddings"
    out.layer(f"{embeddings}.patch_embeddings.projection", dim, 3, 16, 16)
    out[f"{embeddings}.cls_token"] = torch.randn(1, 1, dim)
    out[f"{embeddings}.mask_token"] = torch.zeros(1, dim)
    out[f"{embeddings}.position_embeddings"] = torch.randn(1, side**2 + 1, dim)
    out.norms(f"{backbone}.layernorm", width=dim)
    for k in range(depth):
        block = f"{backbone}.encoder.layer.{k}"
        for part in ("attention.query", "attention.key", "attention.value", "output.dense"):
            out.layer(f"{block}.attention.{part}", dim, dim)
        out.layer(f"{block}.mlp.fc1", 4 * dim, dim)
        out.layer(f"{block}.mlp.fc2", dim, 4 * dim)
        out.norms(f"{block}.norm1", f"{block}.norm2", width=dim)
        for scale in ("1", "2"):
            out[f"{block}.layer_scale{scale}.lambda1"] = torch.rand(dim) + 0.5


def _draw_rf_projector(out: _Drawn, dim: int, depth: int) -> None:
    projector, half = "backbone.0.projector.stages.0", RF_CHANNELS // 2
    out.norms(f"{projector}.1", width=RF_CHANNELS)
    for name, rows, columns, kernel in (
        ("cv1", RF_CHANNELS, depth * dim, 1),
        ("cv2", RF_CHANNELS, 5 * half, 1),
        *((f"m.{k}.cv{n}", half, half, 3) for k in range(3) for n in (1, 2)),
    ):
        out.layer(f"{projector}.0.{name}.conv", rows, columns, kernel, kernel, bias=False)
        out.norms(f"{projector}.0.{name}.bn", width=rows)


def _draw_rf_decoder_layer(out: _Drawn, layer: str) -> None:
    channels = RF_CHANNELS
    out.layer(f"{layer}.self_attn.in_proj", 3 * channels, channels, mark="_")
    out.layer(f"{layer}.self_attn.out_proj", channels, channels)
    for name, rows in (("sampling_offsets", 16), ("attention_weights", 8)):
        out.layer(f"{layer}.cross_attn.{name}", rows, channels)
    out.layer(f"{layer}.cross_attn.value_proj", channels, channels)
    out.layer(f"{layer}.cross_attn.output_proj", channels, channels)
    out.layer(f"{layer}.linear1", RF_HIDDEN, channels)
    out.layer(f"{layer}.linear2", channels, RF_HIDDEN)
    out.norms(*(f"{layer}.norm{n}" for n in (1, 2, 3)), width=channels)
