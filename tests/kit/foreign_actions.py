"""Made-up checkpoints of networks for online action detection and of encoders, in every dialect."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

PARTS = ("self_attn", "norm1", "linear1", "linear2", "norm2")
# dialect and number of blocks of the checkpoints over a single window
DIALECTS = [("0.17", 1), ("0.17", 2), ("1.x", 1), ("1.x encoder", 1), ("1.x", 2)]


class Drawn(dict[str, Tensor]):
    """Tensors by name, drawn layer by layer."""

    def linear(self, name: str, rows: int, columns: int, bias: bool = True) -> None:
        """Draw a linear layer."""
        self[f"{name}.weight"] = torch.randn(rows, columns) / columns**0.5
        if bias:
            self[f"{name}.bias"] = 0.3 * torch.randn(rows)

    def norm(self, name: str, width: int) -> None:
        """Draw a layer norm."""
        self[f"{name}.weight"] = 1 + 0.3 * torch.randn(width)
        self[f"{name}.bias"] = 0.3 * torch.randn(width)


def blocks(dialect: str, depth: int, at: str = "") -> list[tuple[str, ...]]:
    """Return the names of the ``PARTS`` of each block; ``at``: prefix of the encoder's names."""

    def old(at: str) -> tuple[str, ...]:
        return f"{at}0.1", f"{at}1.fn", f"{at}2.1.0", f"{at}2.1.3", f"{at}3.fn"

    def single(at: str) -> tuple[str, ...]:
        ff, tail = f"{at}1._ff_block.1", f"{at}1"
        norms = f"{tail}.norm1.fn", f"{tail}.norm2.fn"
        return f"{at}0.self_attn", norms[0], f"{ff}.linear1", f"{ff}.linear2", norms[1]

    def retroactive(at: str) -> tuple[str, ...]:
        ff, tail = f"{at}1.fn._ff_block.fn", f"{at}1.fn"
        norms = f"{tail}.norm1", f"{tail}.norm2"
        return f"{at}0.self_attn", norms[0], f"{ff}.linear1", f"{ff}.linear2", norms[1]

    if dialect == "torch":
        return [tuple(f"{at}layers.{i}.{part}" for part in PARTS) for i in range(depth)]
    if dialect == "0.17":
        after = f"{at}0.1.fn"
        first = f"{at}0.0.1", f"{after}.0", f"{after}.1.fn.0", f"{after}.1.fn.3", f"{after}.2"
        return [old(at)] if depth == 1 else [first, old(f"{at}1.fn.")]
    if dialect == "deepcot" and depth > 1:
        return [single(f"{at}layers.{i}.") for i in range(depth)]
    if depth == 1:
        return [single(f"{at}layers.0." if dialect == "1.x encoder" else at)]
    return [retroactive(f"{at}layers.0."), single(f"{at}layers.1.fn.")]


def encoder(
    dialect: str, depth: int, width: int, feedforward: int, bias: bool = True, at: str = ""
) -> dict[str, Tensor]:
    """Draw an encoder; ``bias``: of its attention."""
    drawn = Drawn()
    for attention, norm1, linear1, linear2, norm2 in blocks(dialect, depth, at):
        drawn[f"{attention}.in_proj_weight"] = torch.randn(3 * width, width) / width**0.5
        if bias:
            drawn[f"{attention}.in_proj_bias"] = 0.3 * torch.randn(3 * width)
        drawn.linear(f"{attention}.out_proj", width, width, bias)
        drawn.norm(norm1, width)
        drawn.linear(linear1, feedforward, width)
        drawn.linear(linear2, width, feedforward)
        drawn.norm(norm2, width)
    return dict(drawn)


def classifier(  # noqa: PLR0913 - the sizes of the network
    dialect: str,
    depth: int,
    *,
    inputs: int = 7,
    width: int = 12,
    feedforward: int = 20,
    classes: int = 5,
    rows: int = 6,
    fixed: bool = False,
    bias: bool = True,
) -> dict[str, Tensor]:
    """Draw a CoOadTR, CoTrans or DeepCoT; ``rows``: of its positions, ``fixed`` or learned."""
    at = _position(dialect)
    drawn = Drawn()
    drawn.linear("0", width, inputs)
    drawn["1.pe.pattern" if fixed else "1.pe.weight"] = torch.randn(rows, width)
    drawn |= encoder(dialect, depth, width, feedforward, bias, f"{at}.")
    drawn.norm(f"{at + 1}.fn", width)
    drawn.linear(f"{at + 2}", classes, width)
    return dict(drawn)


def window_logits(
    w: dict[str, Tensor], dialect: str, depth: int, heads: int, features: Tensor, times: Tensor
) -> Tensor:
    """Return the logits [K] of a classifier over one window, by torch's own layers.

    ``features``: of the whole stream [T, C]. ``times``: indices of those in the window.
    """
    at = _position(dialect)
    table = w.get("1.pe.weight", w.get("1.pe.pattern"))
    assert table is not None
    x = nn.functional.linear(features[times], w["0.weight"], w["0.bias"])
    x = (x + table[times % len(table)])[None]
    for names in blocks(dialect, depth, f"{at}."):
        feedforward, width = w[f"{names[2]}.weight"].shape
        layer = nn.TransformerEncoderLayer(
            width, heads, feedforward, 0.0, "gelu", batch_first=True
        ).eval()
        state = {key: torch.zeros_like(value) for key, value in layer.state_dict().items()}
        for part, name in zip(PARTS, names, strict=True):
            theirs = {key: key.replace(part, name, 1) for key in state if key.startswith(part)}
            state |= {key: w[name] for key, name in theirs.items() if name in w}
        layer.load_state_dict(state)
        x = layer(x)
    width = x.shape[-1]
    last = torch.layer_norm(x[0, -1], (width,), w[f"{at + 1}.fn.weight"], w[f"{at + 1}.fn.bias"])
    return nn.functional.linear(last, w[f"{at + 2}.weight"], w[f"{at + 2}.bias"])


def _position(dialect: str) -> int:
    return 3 if dialect == "0.17" else 2


def foreign(folder: Path) -> Path:
    """Write an old CoOadTR checkpoint of random weights, as researchers have them."""
    torch.manual_seed(0)
    sizes = {"inputs": 6, "width": 8, "feedforward": 8, "classes": 22, "rows": 4}
    weights = classifier("0.17", 1, bias=False, **sizes)
    args = argparse.Namespace(num_heads=2, enc_layers=4)
    torch.save({"model": weights, "args": args}, folder / "checkpoint.pth")
    return folder / "checkpoint.pth"


class MiniRoadModules(nn.Module):
    """MiniROAD, its modules as the authors name them: 6 features, 22 classes."""

    def __init__(self, layers: int = 1, inputs: int = 6) -> None:
        super().__init__()
        self.gru = nn.GRU(12, 8, layers, batch_first=True)
        self.layer1 = nn.Sequential(
            nn.Linear(inputs, 12), nn.LayerNorm(12), nn.ReLU(), nn.Dropout(0.2)
        )
        self.f_classification = nn.Sequential(nn.Linear(8, 22))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [B, T, 22] of features [B, T, inputs]."""
        rows, _ = self.gru(self.layer1(x))
        logits: Tensor = self.f_classification(torch.relu(rows))
        return logits


OADTR = {"inputs": 7, "width": 12, "feedforward": 10, "window": 5, "layers": 2, "heads": 3}
OADTR_DECODER = {"queries": 4, "layers": 2, "feedforward": 14, "heads": 2}


def oadtr(fixed: bool = False, classes: int = 6, width: int = OADTR["width"]) -> dict[str, Tensor]:
    """Draw an official OadTR of the sizes above; ``fixed``: not learned positions."""
    w = Drawn()
    d, ff, queries = width, OADTR["feedforward"], OADTR_DECODER["queries"]
    w["cls_token"], w["decoder_cls_token"] = torch.randn(1, 1, d), torch.randn(1, queries, d)
    w.linear("linear_encoding", d, OADTR["inputs"])
    positions = {"position_encoding": OADTR["window"] + 1, "decoder_position_encoding": queries}
    for name, rows in positions.items():
        if fixed:
            w[f"{name}.pe"] = torch.randn(20, 1, d)
        else:
            w[f"{name}.position_ids"] = torch.arange(rows)[None]
            w[f"{name}.pe.weight"] = torch.randn(rows, d)
    for i in range(OADTR["layers"]):
        w.norm(f"encoder.net.{2 * i}.fn.norm", d)
        w.linear(f"encoder.net.{2 * i}.fn.fn.qkv", 3 * d, d, bias=False)
        w.linear(f"encoder.net.{2 * i}.fn.fn.proj", d, d)
        w.norm(f"encoder.net.{2 * i + 1}.fn.norm", d)
        w.linear(f"encoder.net.{2 * i + 1}.fn.fn.net.0", ff, d)
        w.linear(f"encoder.net.{2 * i + 1}.fn.fn.net.3", d, ff)
    w.norm("pre_head_ln", d)
    w.linear("mlp_head", classes, 2 * d)
    for j in range(OADTR_DECODER["layers"]):
        at, inner = f"decoder.layers.{j}", OADTR_DECODER["feedforward"]
        for attention in ("self_attention", "cross_attention"):
            for part in ("query", "key", "value", "out"):
                w.linear(f"{at}.{attention}.{part}_projection", d, d)
        for name, rows, columns in (("conv1", inner, d), ("conv2", d, inner)):
            w.linear(f"{at}.{name}", rows, columns)
            w[f"{at}.{name}.weight"] = w[f"{at}.{name}.weight"][..., None]
        for k in (1, 2, 3):
            w.norm(f"{at}.norm{k}", d)
    w.norm("decoder.norm", d)
    w.linear("classifier", classes, d)
    return dict(w)


TESTRA = {"inputs": 6, "width": 8, "feedforward": 10, "heads": 2, "memory": 3, "refined": 4}
TESTRA_SETTINGS = {"num_heads": "2", "window": "5", "memory_every": "3", "memory_decay": "0.8"}


def drawn_testra(classes: int = 22, positions: int = 12) -> dict[str, Tensor]:
    """Draw a TeSTra of the sizes above, its tensors as the authors name them."""
    w, d, ff = Drawn(), TESTRA["width"], TESTRA["feedforward"]
    for head in ("long", "work"):
        w.linear(f"feature_head_{head}.input_linear.0", d, TESTRA["inputs"])
    w["enc_queries.0.weight"] = torch.randn(TESTRA["memory"], d)
    w["enc_queries.1.weight"] = torch.randn(TESTRA["refined"], d)
    w["pos_encoding.pe"] = torch.randn(positions, 1, d)
    for module, layers in (("enc_modules.0", 1), ("enc_modules.1", 2), ("dec_modules", 2)):
        draw_decoder(w, module, layers, d, ff)
    w.linear("classifier", classes, d)
    return dict(w)


CMERT = {**TESTRA, "motion": 2, "generated": 3, "future": 7}
CMERT_SETTINGS = {"num_heads": "2", "window": "4", "context": "3", "memory_every": "3"}
CMERT_SETTINGS |= {"memory_samples": "3", "anticipated": "2"}


def drawn_cmert(classes: int = 22, positions: int = 12, motion: bool = True) -> dict[str, Tensor]:
    """Draw a CMeRT of the sizes above, its tensors as the authors name them.

    ``motion``: whether the last values of its rows are a second stream.
    """
    w, d, ff = Drawn(), CMERT["width"], CMERT["feedforward"]
    rows = CMERT["inputs"]
    parts = {"visual_linear": rows}
    if motion:
        parts = {"visual_linear": rows - CMERT["motion"], "motion_linear": CMERT["motion"]}
        parts["input_linear"] = 2 * d
    for head in ("long", "work"):
        for part, width in parts.items():
            w.linear(f"feature_head_{head}.{part}.0", d, width)
            w.norm(f"feature_head_{head}.{part}.1", d)
    for name, size in (
        ("enc_queries.0", "memory"),
        ("enc_queries.1", "refined"),
        ("gen_query", "generated"),
        ("final_query", "future"),
    ):
        w[f"{name}.weight"] = torch.randn(CMERT[size], d)
    w["pos_encoding.pe"] = torch.randn(positions, 1, d)
    for module, layers in (
        *(("enc_modules.0", 1), ("enc_modules.1", 2), ("dec_modules", 2)),
        *(("gen_layer", 2), ("work_fusions.0", 1), ("work_fusions.1", 1)),
    ):
        draw_decoder(w, module, layers, d, ff)
    w.linear("classifier", classes, d)
    return dict(w)


def draw_decoder(w: Drawn, module: str, layers: int, d: int, feedforward: int) -> None:
    """Draw so many decoder layers of width d, and the norm after them."""
    for k in range(layers):
        at = f"{module}.layers.{k}"
        for attention in ("self_attn", "multihead_attn"):
            w[f"{at}.{attention}.in_proj_weight"] = torch.randn(3 * d, d) / d**0.5
            w[f"{at}.{attention}.in_proj_bias"] = torch.randn(3 * d)
            w.linear(f"{at}.{attention}.out_proj", d, d)
        w.linear(f"{at}.linear1", feedforward, d)
        w.linear(f"{at}.linear2", d, feedforward)
        for norm in (1, 2, 3):
            w.norm(f"{at}.norm{norm}", d)
    w.norm(f"{module}.norm", d)
