"""OadTR against torch's own modules and the released code."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from costream.models.oad.oadtr import OadTR
from costream.training.optim import remove_dropout
from kit.paths import REFS

REFERENCE = REFS / "transformers/oadtr_learned.npz"


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


SIZES = {"embed_dim": 16, "depth": 2, "num_heads": 4, "feedforward": 24, "window": 6}
SIZES |= {"decoder_depth": 2, "decoder_feedforward": 20}


def small(**options: object) -> OadTR:
    model = OadTR(10, 5, **{**SIZES, **options})
    drawn = [getattr(model, name, None) for name in ("class_token", "decoder_queries")]
    for parameter in (*drawn, *model.encoder.norm.parameters()):
        if parameter is not None:
            torch.nn.init.normal_(parameter)
    return model.eval()


def by_hand(model: OadTR, window: Tensor, entry: int = 1) -> tuple[Tensor, Tensor | None]:
    """One window [n, C], written down anew from the paper and the released code."""
    x = model.input_projection(window)
    if entry == 1:
        x = torch.cat([x, model.class_token[0]])
    x = x + model.positions.table
    for k, block in enumerate(model.encoder.layers, 1):
        if k == entry > 1:
            x = torch.cat([x, model.class_token[0]])
        y = block.norm1(x)
        q, k, v = (y @ w.T for w in block.self_attn.in_proj_weight.chunk(3))
        x = x + block.self_attn.out_proj(attention(q, k, v, 4))
        x = x + block.linear2(torch.nn.functional.gelu(block.linear1(block.norm2(x))))
    memory = model.encoder.norm(x)
    if model.decoder is None:
        return model.head(memory[-1]), None
    y = model.decoder_queries[0]
    for layer in model.decoder.layers:
        a, c = layer.self_attn, layer.multihead_attn
        y = layer.norm1(y + attend_with(a, y, y, causal=True))
        y = layer.norm2(y + attend_with(c, y, memory, causal=False))
        y = layer.norm3(y + layer.linear2(torch.nn.functional.gelu(layer.linear1(y))))
    y = model.decoder.norm(y)
    return model.head(torch.cat([memory[-1], y.mean(0)])), model.anticipation_head(y)


def attend_with(a: torch.nn.MultiheadAttention, x: Tensor, rows: Tensor, causal: bool) -> Tensor:
    weights, biases = a.in_proj_weight.chunk(3), a.in_proj_bias.chunk(3)
    inputs = (x, rows, rows)
    q, k, v = (i @ w.T + b for i, w, b in zip(inputs, weights, biases, strict=True))
    return a.out_proj(attention(q, k, v, a.num_heads, causal))


def attention(q: Tensor, k: Tensor, v: Tensor, heads: int, causal: bool = False) -> Tensor:
    out = []
    for a, b, c in zip(*(t.chunk(heads, 1) for t in (q, k, v)), strict=True):
        logits = a @ b.T / a.shape[1] ** 0.5
        if causal:
            logits = logits.masked_fill(torch.ones_like(logits).triu(1).bool(), float("-inf"))
        out.append(logits.softmax(1) @ c)
    return torch.cat(out, 1)


@pytest.mark.parametrize("positions", ["learned", "fixed"])
def test_steps_chunks_and_clip_are_the_sliding_window(positions: str) -> None:
    model = small(positions=positions).double()
    x = torch.randn(2, 15, 10, dtype=torch.float64)
    clip = model(x)
    assert clip.logits.shape == (2, 15, 5)
    assert clip.anticipation is not None
    assert clip.anticipation.shape == (2, 15, 8, 5)
    for stream in range(2):
        for t in range(5, 15):
            logits, anticipation = by_hand(model, x[stream, t - 5 : t + 1])
            torch.testing.assert_close(clip.logits[stream, t], logits)
            torch.testing.assert_close(clip.anticipation[stream, t], anticipation)
    state = model.init_state(2)
    steps = [model.forward_step(row, state) for row in x.unbind(1)]
    torch.testing.assert_close(torch.stack([s.logits for s in steps], 1), clip.logits)
    torch.testing.assert_close(torch.stack([s.anticipation for s in steps], 1), clip.anticipation)
    state = model.init_state(2)
    chunks = torch.cat([model.forward_steps(part, state).logits for part in x.split(4, 1)], 1)
    torch.testing.assert_close(chunks, clip.logits)
    torch.testing.assert_close(model(x, offset=7, last=3).logits, clip.logits[:, -3:])
    remove_dropout(model.train())
    torch.testing.assert_close(model(x).anticipation, clip.anticipation)


@pytest.mark.parametrize("positions", ["learned", "fixed"])
@pytest.mark.parametrize("decoder_depth", [0, 2])
@pytest.mark.parametrize("entry", [0, 1, 2, 3])
def test_without_decoder_and_with_a_later_class_token(
    entry: int, decoder_depth: int, positions: str
) -> None:
    own = {"depth": 3, "class_token": entry, "decoder_depth": decoder_depth}
    model = small(**own, positions=positions).double()
    x = torch.randn(2, 15, 10, dtype=torch.float64)
    clip = model(x)
    assert (clip.anticipation is None) == (decoder_depth == 0)
    for stream in range(2):
        for t in range(5, 15):
            logits, anticipation = by_hand(model, x[stream, t - 5 : t + 1], entry)
            torch.testing.assert_close(clip.logits[stream, t], logits)
            if clip.anticipation is not None:
                torch.testing.assert_close(clip.anticipation[stream, t], anticipation)
    state = model.init_state(2)
    steps = [model.forward_step(row, state).logits for row in x.unbind(1)]
    torch.testing.assert_close(torch.stack(steps, 1), clip.logits)
    # Of a window that is not full, rows and their positions are as in a window of its length.
    cut = OadTR(10, 5, **{**SIZES, **own, "window": 4, "positions": positions}).eval().double()
    weights = model.state_dict()
    if positions == "learned":
        weights["positions.table"] = weights["positions.table"][2:]
    cut.load_state_dict(weights)
    torch.testing.assert_close(clip.logits[0, 3], by_hand(cut, x[0, :4], entry)[0])


def test_missing_rows_of_a_short_window_are_seen_by_none() -> None:
    model = small().double()
    x = torch.randn(1, 4, 10, dtype=torch.float64)
    short = model(x).logits[0, -1]
    # The same network with the window cut to four rows and their positions.
    cut = OadTR(10, 5, **{**SIZES, "window": 4}).eval().double()
    weights = model.state_dict()
    weights["positions.table"] = weights["positions.table"][2:]
    cut.load_state_dict(weights)
    torch.testing.assert_close(short, by_hand(cut, x[0])[0])


def test_fixed_positions_are_those_of_a_window_by_itself() -> None:
    model = small(positions="fixed")
    assert model.positions.table.tolist() == [[0.0, 1.0] * 8]
    assert "positions.table" not in dict(model.named_parameters())
    with pytest.raises(ValueError, match="positions"):
        small(positions="none")


def test_published_sizes() -> None:
    with torch.device("meta"):
        model = OadTR(3072, 22)
    # The released file has 8 x 1024 more: decoder positions, which nothing reads.
    assert sum(p.numel() for p in model.parameters()) == 74_709_036 - 8 * 1024
    assert model.dense_macs - model.count_macs() == 63 * 3072 * 1024


# Of Table 1a of Continual Transformers, in millions. Its operations are those of weights only, and
# have a head for each row of the window.
@pytest.mark.parametrize(
    ("depth", "entry", "parameters", "macs"),
    [
        (3, 2, 22.2, 1423.5),
        (3, 3, 22.2, 1417.2),
        (3, 0, 22.2, 1410.9),
        (2, 1, 15.9, 1020.7),
        (2, 2, 15.9, 1014.5),
        (2, 0, 15.9, 1008.1),
        (1, 0, 9.6, 605.5),
    ],
)
def test_published_sizes_without_decoder(
    depth: int, entry: int, parameters: float, macs: float
) -> None:
    with torch.device("meta"):
        model = OadTR(3072, 22, depth=depth, class_token=entry, decoder_depth=0)
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(parameters, abs=0.07)
    rows = [64 + (0 < entry <= k) for k in range(1, depth + 1)]
    own = model.dense_macs - sum(2 * n**2 * 1024 for n in rows) + 63 * 1024 * 22
    assert own / 1e6 == pytest.approx(macs, abs=0.25)


@pytest.mark.parametrize(
    "wrong", [{"class_token": 3}, {"class_token": -1}, {"decoder_depth": -1}, {"num_queries": 0}]
)
def test_what_no_network_can_be(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        small(**wrong)


def test_macs_count_every_product() -> None:
    model = small()
    d, n, m, q = 16, 6, 7, 8
    encoder = 2 * (4 * m * d**2 + 2 * m**2 * d + 2 * m * d * 24)
    own = 4 * q * d**2 + 2 * q**2 * d
    cross = 2 * q * d**2 + 2 * m * d**2 + 2 * q * m * d
    decoder = 2 * (own + cross + 2 * q * d * 20)
    assert model.dense_macs == n * 10 * d + encoder + decoder + 2 * d * 5 + q * d * 5
    bare = small(decoder_depth=0, class_token=2)
    blocks = [4 * r * d**2 + 2 * r**2 * d + 2 * r * d * 24 for r in (n, m)]
    assert bare.dense_macs == n * 10 * d + sum(blocks) + d * 5


@pytest.mark.skipif(not REFERENCE.exists(), reason="needs ../shared/refs beside the repository")
def test_official_arithmetic() -> None:
    data = np.load(REFERENCE)
    sizes = {"embed_dim": 32, "num_heads": 4, "feedforward": 48}
    model = OadTR(28, 22, decoder_feedforward=40, **sizes).eval()
    weights = {k[3:]: torch.from_numpy(data[k]) for k in data.files if k.startswith("sd/")}
    model.load_state_dict(_renamed(weights))
    x = torch.cat([torch.from_numpy(data["rgb"]), torch.from_numpy(data["flow"])], 1)[None]
    state = model.init_state()
    steps = [model.forward_step(row, state) for row in x.unbind(1)][63:]
    for got, name in (("logits", "out_x"), ("anticipation", "out_dec")):
        out = torch.cat([getattr(step, got) for step in steps])
        torch.testing.assert_close(out, torch.from_numpy(data[name]), atol=1e-5, rtol=0)


PREFIXES = {
    "linear_encoding": "input_projection",
    "decoder_cls_token": "decoder_queries",
    "cls_token": "class_token",
    "position_encoding.pe.weight": "positions.table",
    "pre_head_ln": "encoder.norm",
    "mlp_head": "head",
    "classifier": "anticipation_head",
    "decoder.norm": "decoder.norm",
}


def _renamed(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the authors' tensors under costream's names."""
    out = {}
    for key, value in weights.items():
        if key.startswith("encoder.net."):
            out[_encoder_name(key.split("."))] = value
        elif key.startswith("decoder.layers."):
            out |= _decoder_tensors(key, value, weights)
        elif not key.startswith(("decoder_position", "position_encoding.position_ids")):
            old = next(k for k in PREFIXES if key.startswith(k))
            out[PREFIXES[old] + key[len(old) :]] = value
    return out


def _encoder_name(parts: list[str]) -> str:
    index, last = int(parts[2]), parts[-1]
    layer = f"encoder.layers.{index // 2}"
    if parts[4] == "norm":
        return f"{layer}.norm{index % 2 + 1}.{last}"
    if parts[5] == "qkv":
        return f"{layer}.self_attn.in_proj_{last}"
    if parts[5] == "proj":
        return f"{layer}.self_attn.out_proj.{last}"
    return f"{layer}.linear{1 if parts[6] == '0' else 2}.{last}"


def _decoder_tensors(key: str, value: Tensor, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return what a tensor becomes; those of keys and values come with those of queries."""
    parts = key.split(".")
    layer = ".".join(parts[:3])
    if "_attention" not in key:
        name = parts[3].replace("conv", "linear")
        return {f"{layer}.{name}.{parts[-1]}": value[..., 0] if value.dim() == 3 else value}
    kind = "self_attn" if "self_" in key else "multihead_attn"
    if "out_projection" in key:
        return {f"{layer}.{kind}.out_proj.{parts[-1]}": value}
    if "query" not in key:
        return {}
    three = [weights[key.replace("query", k)] for k in ("query", "key", "value")]
    return {f"{layer}.{kind}.in_proj_{parts[-1]}": torch.cat(three)}
