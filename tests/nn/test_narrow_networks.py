"""Our own networks pruned: narrower, still the masked ones, their steps their clips, loadable."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import costream.nn as co
from costream.models.adapters import WithFrontend
from costream.models.audio.audio_net import ContinualAudioNet
from costream.models.oad.cooadtr import CoOadTR
from costream.models.oad.deepcot import DeepCoT
from costream.models.oad.oadtr import OadTR
from costream.models.oad.tdn import TemporalDifferenceNet
from costream.models.skeleton.network import SkeletonNet
from costream.nn.widths import narrow

BONES = [[1, 0], [2, 1], [3, 1], [4, 3]]


def _skeletons(**options: Any) -> SkeletonNet:
    sizes = {"widths": [8, 8, 16], "strides": [1, 2, 1], "kernel": 5, "pool": 4}
    return SkeletonNet(4, 5, BONES, persons=1, padding="causal", **{**sizes, **options})


def _tokens(**options: Any) -> CoOadTR:
    return CoOadTR(12, 4, embed_dim=16, num_heads=4, feedforward=32, window=6, **options)


NETWORKS: dict[str, Any] = {
    "st-gcn": _skeletons,
    "statistics": lambda: _skeletons(statistics=True, inner_residual=False),
    "adaptive graphs": lambda: _skeletons(kind="agcn"),
    "branches": lambda: _skeletons(temporal="branches"),
    "attention to joints": lambda: _skeletons(kind="str", widths=[32] * 5, strides=[1] * 5),
    "one block": _tokens,
    "three blocks": lambda: _tokens(depth=3),
    "skip": lambda: _tokens(skip=True),
    "deep": lambda: DeepCoT(
        12, 4, embed_dim=16, num_heads=4, feedforward=32, depth=2, window=6
    ),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", NETWORKS)
def test_pruned_networks_are_the_masked_ones_and_step(name):
    net = NETWORKS[name]().double().eval()
    for layer in net.modules():  # as if trained
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            nn.init.normal_(layer.bias)
            nn.init.uniform_(layer.running_var, 0.5, 2)
    fresh, macs = copy.deepcopy(net), net.count_macs()
    skeletons = isinstance(net, SkeletonNet)
    clip = torch.randn(2, 14, 1, 5, 3) if skeletons else torch.randn(2, 14, 12)
    clip = clip.double()
    whole = [name for name in ("fc", "head", "skip") if getattr(net, name, None) is not None]
    co.adapt(net, "splora", 2, whole=whole)
    pruner = co.Pruner(net, clip, "magnitude")
    assert pruner.prune(0.5) <= 0.5
    masked = _first(net(clip))
    pruner.finish()
    assert net.count_macs() < 0.7 * macs
    torch.testing.assert_close(_first(net(clip)), masked, rtol=0, atol=1e-9)
    narrow(fresh, net.state_dict())
    fresh.load_state_dict(net.state_dict())
    assert (fresh.count_macs(), fresh.dense_macs) == (net.count_macs(), net.dense_macs)
    for streams in (1, 2):
        state = fresh.init_state(streams)
        outputs = [fresh.forward_step(x, state) for x in clip[:streams].unbind(1)]
        steps = torch.stack([o.logits for o in outputs if o is not None], 1)
        torch.testing.assert_close(steps, masked[:streams], rtol=0, atol=1e-9)


def _first(output: Any) -> torch.Tensor:
    return output if isinstance(output, torch.Tensor) else output.logits


WIDTHS = {"widths": (8, 16, 16, 16, 16, 24, 24), "feature_width": 32, "token_width": 12}
# name -> frontend, network on its tokens, a clip of two streams
WHOLE: dict[str, Any] = {
    "sound": (
        lambda: ContinualAudioNet(**WIDTHS),
        lambda: _tokens(skip=True),
        torch.randn(2, 3, 4000),
    ),
    "video": (
        lambda: TemporalDifferenceNet((32, 24), (8, 8, 16, 6), 4, (1, 3), 1, 3),
        lambda: OadTR(15, 4, embed_dim=16, num_heads=4, feedforward=32, depth=1, window=4,
                      decoder_depth=1, decoder_feedforward=32),
        torch.randint(0, 256, (2, 7, 3, 24, 32)).float(),
    ),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(("name", "norm"), [("sound", False), ("sound", True), ("video", True)])
def test_frontends_are_pruned_with_their_networks(name, norm):
    """The tokens between them become narrower too."""
    make, make_network, clip = WHOLE[name]
    whole = WithFrontend(make_network(), make()).eval().double()
    if name == "sound" and norm:  # that for video always has some
        whole.frontend = ContinualAudioNet(**WIDTHS, norm=True).eval().double()
    for layer in whole.modules():  # as if trained
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            nn.init.normal_(layer.bias)
            nn.init.uniform_(layer.running_var, 0.5, 2)
    last = whole.frontend.project if name == "sound" else whole.frontend.places[0]
    last.weight[:2] *= 1e-3  # so that they go first
    fresh, macs, before = copy.deepcopy(whole), whole.count_macs(), _first(whole(clip.double()))
    co.adapt(whole, "splora", 2, whole=["network.head"])
    assert torch.equal(_first(co.fuse(copy.deepcopy(whole))(clip.double())), before)
    for parameter in whole.parameters():
        if parameter.dim() == 2 and not parameter.any():
            nn.init.normal_(parameter, std=0.1)
    pruner = co.Pruner(whole, clip, "magnitude")
    assert pruner.prune(1) == 1
    assert pruner.prune(0.4) <= 0.4
    masked = _first(whole(clip.double()))
    pruner.finish()
    assert whole.count_macs() < macs
    assert whole.frontend.token_width < (12 if name == "sound" else 15)
    torch.testing.assert_close(_first(whole(clip.double())), masked, rtol=0, atol=1e-9)
    narrow(fresh, whole.state_dict())
    fresh.load_state_dict(whole.state_dict())
    assert fresh.count_macs() == whole.count_macs()
    state, held = fresh.frontend.init_state(2), fresh.network.init_state(2)
    for k, x in enumerate(clip.double().unbind(1)):
        out = fresh.network.forward_step(fresh.frontend.forward_step(x, state), held)
        if out is not None:
            torch.testing.assert_close(out.logits, masked[:, k], rtol=0, atol=1e-9)


def test_what_narrows_must_fit():
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    tensors = net.state_dict()
    narrow(net, {**tensors, "0.weight": torch.zeros(3, 3), "0.bias": torch.zeros(3)})
    assert (net[0].out_features, net[1].in_features) == (3, 4)
    for shape in ((5, 3), (0, 3), (4,)):
        with pytest.raises(ValueError, match=r"0\.weight is"):
            narrow(net, {"0.weight": torch.zeros(shape)})


def test_layers_lie_in_memory_as_they_did():
    """A step reads the weights of a convolution as the matrix that they are in memory."""
    part = ContinualAudioNet(widths=(8,) * 7, feature_width=8)
    weights = {k: v[:4] if k == "layers.0.convolution.weight" else v
               for k, v in part.state_dict().items()}  # fmt: skip
    narrow(part, weights)
    assert part.layers[0].convolution.weight.permute(0, 2, 3, 1).is_contiguous()
