"""Encoders of transformers as DeepCoT: found by structure, the same as their layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import costream.nn as co

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
KINDS = ("Bert", "RoFormer", "AST", "ViT", "Wav2Vec2", "DeiT", "Dinov2")


class Block(nn.Module):
    """A block of timm's ViT, with layer scale."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.num_heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width, 1e-6), nn.LayerNorm(width, 1e-6)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 40), nn.Linear(40, width)
        self.gamma1, self.gamma2 = (nn.Parameter(torch.rand(width)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d)
        x = x + self.gamma1 * self.proj(y)
        return x + self.gamma2 * self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Timm(nn.Module):
    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(depth)))
        self.norm = nn.LayerNorm(16, 1e-6)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.blocks(x))


def _check(encoder: Any, rows: Tensor) -> None:
    """A stream gives what the clip gives, by steps, by chunks and by several tokens a step."""
    state, chunked = encoder.init_state(len(rows)), encoder.init_state(len(rows))
    stepped = torch.stack([encoder.forward_step(x, state) for x in rows.unbind(1)], 1)
    torch.testing.assert_close(stepped, encoder(rows), rtol=0, atol=1e-5)
    torch.testing.assert_close(encoder.forward_steps(rows, chunked), stepped, rtol=0, atol=1e-5)


@pytest.mark.parametrize("change", [lambda m: co.to_deepcot(m, 4), co.to_eventful])
def test_a_network_shares_nothing_with_what_it_was_made_of(change):
    model = Timm()
    before = {name: (p.dtype, p.clone()) for name, p in model.named_parameters()}
    made = change(model)
    assert all(m.training for m in model.modules())
    with torch.no_grad():
        for p in made.half().parameters():
            p.zero_()
    for name, p in model.named_parameters():
        assert p.dtype == before[name][0]
        assert torch.equal(p, before[name][1])


def test_blocks_with_layer_scale():
    model, rows = Timm().eval(), torch.randn(2, 12, 16)
    encoder = co.to_deepcot(model, window=6, rows=rows)
    _check(encoder, rows)
    # A window of one row, and one layer, are the network itself.
    torch.testing.assert_close(co.to_deepcot(model, 1)(rows[:, :1]), model(rows[:, :1]))
    one = Timm(1).eval()
    torch.testing.assert_close(co.to_deepcot(one, 12)(rows)[:, -1], one(rows)[:, -1])
    assert "newest output against the window recomputed" in encoder.report()
    assert 0 < encoder.change < 1
    several = encoder.forward_step(rows[:, :4], encoder.init_state(2))
    torch.testing.assert_close(several, encoder(rows[:, :4], tokens=4))


def test_soft_attention_has_its_own_form():
    rows = torch.randn(2, 12, 16)
    encoder = co.to_deepcot(Timm().eval(), window=6, soft=True, rotary=True, rows=rows)
    _check(encoder, rows)
    assert "rotary" in encoder.report()


@pytest.mark.parametrize("kind", KINDS)
def test_models_of_transformers(kind):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES)
    model = getattr(transformers, f"{kind}Model")(config).eval()
    rows = torch.randn(2, 9, 16)
    encoder = co.to_deepcot(model, window=5, rotary=kind == "RoFormer", rows=rows)
    assert encoder.depth == 3
    _check(encoder, rows)
    if kind in ("Bert", "RoFormer"):  # one layer is exact, rotary positions included
        config = getattr(transformers, f"{kind}Config")(**{**SIZES, "num_hidden_layers": 1})
        model = getattr(transformers, f"{kind}Model")(config).eval()
        ids = torch.randint(0, 99, (1, 9))
        embedded = model.embeddings(ids)
        one = co.to_deepcot(model, window=9, rotary=kind == "RoFormer")
        expected = model(ids).last_hidden_state
        torch.testing.assert_close(one(embedded)[:, -1], expected[:, -1], rtol=0, atol=1e-5)


class Vit(nn.Module):
    """A ViT of timm's form: a class token, absolute positions, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.token = nn.Conv2d(3, 16, 8, 8), nn.Parameter(torch.randn(1, 1, 16))
        self.position, self.body = nn.Parameter(torch.randn(1, 17, 16)), Timm()
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), patches], 1) + self.position
        return self.head(self.body(x)[:, 0])


def test_eventful_vit():
    model, frames = Vit().eval(), torch.randn(4, 2, 3, 32, 32)
    frames[1:, :, :, 8:] = frames[0, :, :, 8:]  # the upper row of patches changes
    everything = co.to_eventful(model, co.TopTokens(17))
    state = everything.init_state(2, frames[0])
    for frame in frames:
        torch.testing.assert_close(everything.forward_step(frame, state), model(frame))
    assert everything.operations.total == 2 * everything.count_macs(17)
    some = co.to_eventful(model)
    state = some.init_state(2, frames[0])
    outs = [some.forward_step(frame, state, co.TopTokens(12)) for frame in frames]
    torch.testing.assert_close(outs[0], model(frames[0]))
    assert some.operations.total < everything.operations.total
    error = (outs[-1] - model(frames[-1])).norm()
    assert error < 0.5 * (model(frames[0]) - model(frames[-1])).norm()
    held = state.take([1])
    one = some.forward_step(frames[0, 1:], held, co.TopTokens(17))
    torch.testing.assert_close(one, model(frames[0, 1:]))
    torch.testing.assert_close(some(frames[2]), model(frames[2]))


def test_eventful_vit_without_a_policy_is_the_network():
    model, frames = Vit().eval(), torch.randn(3, 2, 3, 32, 32)
    net = co.to_eventful(model)
    state = net.init_state(2, frames[0])
    for k in (0, 1, 1, 2):
        torch.testing.assert_close(net.forward_step(frames[k], state), model(frames[k]))
    assert net.operations.total == 2 * net.count_macs()
    net.forward_step(frames[2], state)  # what has changed in all streams is not kept at once
    net.forward_step(frames[2], state)
    assert not net.operations.total  # nothing has changed
    some = torch.stack([frames[2, 0], frames[0, 1]])
    torch.testing.assert_close(net.forward_step(some, state), model(some))
    assert net.operations.total == net.count_macs()
    torch.testing.assert_close(net.forward_step(some, state, co.TopTokens(1)), model(some))
    assert net.operations.total == 2 * net.count_macs()  # in full after exact frames


@pytest.mark.parametrize("kind", ["ViT", "DeiT", "Dinov2", "Dinov2WithRegisters", "Siglip"])
def test_eventful_models_of_transformers(kind):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    name = "SiglipVision" if kind == "Siglip" else kind
    config = getattr(transformers, f"{name}Config")(**SIZES, image_size=32, patch_size=8)
    model = getattr(transformers, f"{name}Model")(config).eval()
    frames = torch.randn(3, 1, 3, 32, 32)
    eventful = co.to_eventful(model, co.TopTokens(99))
    state = eventful.init_state(1, frames[0])
    for frame in frames:
        out = eventful.forward_step(frame, state).last_hidden_state
        torch.testing.assert_close(out, model(frame).last_hidden_state, rtol=0, atol=1e-5)


TIMM = {
    "vit_tiny_patch16_224": "exact",
    "deit_tiny_distilled_patch16_224": "exact",  # two tokens more, two heads
    "vit_small_patch14_reg4_dinov2": "exact",  # registers, layer scale
    "vit_base_patch16_siglip_224": "exact",  # pooled by attention
    "swin_tiny_patch4_window7_224": "own",  # windows
    "beit_base_patch16_224": "own",  # relative positions
    "eva02_tiny_patch14_224": "own",  # rotary positions, gated layers
}


@pytest.mark.parametrize("name", TIMM)
def test_eventful_models_of_timm(name):
    timm = pytest.importorskip("timm", reason="timm is not installed")
    torch.manual_seed(0)
    small = {"depths": (1, 1, 1, 1)} if name.startswith("swin") else {"depth": 2}
    sizes = {"img_size": 56} if name.startswith("vit_small") else {}
    model = timm.create_model(name, **small, **sizes).eval()
    frames = torch.randn(2, 1, 3, *model.patch_embed.img_size)
    eventful = co.to_eventful(model, co.TopTokens(99_999), attention=TIMM[name])
    state = eventful.init_state(1, frames[0])
    with torch.no_grad():
        for frame in frames:
            out = eventful.forward_step(frame, state)
            torch.testing.assert_close(out, model(frame), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Linear(4, 4)), "no list of encoder layers"),
        (nn.Sequential(*(nn.Sequential(Block(), nn.Tanh()) for _ in range(2))), "softmax"),
    ],
)
def test_refusals(model, message):
    with pytest.raises(co.ConversionError, match=message):
        co.to_deepcot(model, 4)
    with pytest.raises(co.ConversionError, match=message):
        co.to_eventful(model)
