"""VGGish against its reference arrays, and as a frontend of streams."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from costream.models.audio.vggish import OUTPUTS, VGGish, mel_matrix
from kit import foreign_sound
from kit.paths import REFS

REFERENCE = REFS / "transformers" / "vggish.npz"
NARROW = {"widths": (2, 3, 4, 4, 5, 5), "hidden": 6, "width": 7}


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with torch.no_grad():
        yield


def narrow(output: str = "relu", hop_frames: int = 25) -> VGGish:
    return VGGish(output, hop_frames, **NARROW).eval()


def sound(blocks: int, batch: int = 1, hop_frames: int = 25) -> Tensor:
    return 0.3 * torch.randn(batch, blocks, hop_frames * 160)


@pytest.mark.long
@pytest.mark.skipif(not REFERENCE.exists(), reason="needs ../shared/refs beside the repository")
def test_reference_arrays_of_the_full_size() -> None:
    with np.load(REFERENCE) as file:
        arrays = dict(file)
    assert np.abs(mel_matrix().numpy() - arrays["mel_matrix"]).max() < 1e-12
    net = VGGish("relu-pca").eval()
    post = foreign_sound.pca()
    weights = {
        "pca.vectors": post["pca_eigen_vectors"],
        "pca.means": post["pca_means"].flatten(),
    }
    net.load_state_dict({**foreign_sound.vggish(), **weights})
    samples = torch.from_numpy(arrays["waveform"]).float()[None]
    frames = net.mel(samples)[:, 2:]  # the first two reach back before the first sample
    assert np.abs(frames[0].numpy() - arrays["log_mel"]).max() < 1e-4
    examples = torch.from_numpy(arrays["examples"]).float()
    maps = net.features(examples[:, None]).permute(0, 2, 3, 1).flatten(1)
    penultimate = net.embeddings[:4](maps)
    linear = net.embeddings[4](penultimate)
    for ours, theirs in (
        (maps, "features_flat"),
        (penultimate, "fc2_relu_4096"),
        (linear, "embedding_preact"),
        (net.embeddings(maps), "embedding"),
    ):
        assert np.abs(ours.numpy() - arrays[theirs]).max() < 1e-4, theirs
    steps = np.abs(net.embed(examples).numpy() - arrays["quantised"])
    assert steps.max() <= 1  # the other side of a half
    assert (steps == 0).mean() > 0.98


def test_the_newest_window_is_that_of_the_examples() -> None:
    net = narrow()
    x = sound(8)
    tokens = net(x)
    frames = net.mel(x.flatten(1))[:, 2:]
    for step in range(3, 8):
        end = 25 * (step + 1) - 2
        torch.testing.assert_close(tokens[:, step], net.embed(frames[:, end - 96 : end]))


def test_silence_comes_first() -> None:
    net = narrow()
    x = torch.zeros(1, 6, 4000)
    token = net.embed(torch.full((1, 96, 64), math.log(0.01)))
    torch.testing.assert_close(net(x), token[:, None].expand(1, 6, 7))
    state = net.init_state()
    torch.testing.assert_close(net.forward_step(x[:, 0], state), token)


@pytest.mark.parametrize("output", OUTPUTS)
def test_outputs(output: str) -> None:
    net, plain = narrow(output), narrow("linear")
    plain.load_state_dict({k: v for k, v in net.state_dict().items() if "pca" not in k}, False)
    examples = torch.randn(20, 96, 64)
    linear, out = plain.embed(examples), net.embed(examples)
    if output == "penultimate":
        assert net.token_width == out.shape[1] == 6
        torch.testing.assert_close(plain.embeddings[4](out), linear)
        return
    assert net.token_width == 7
    expected = linear.clamp(min=0) if output.startswith("relu") else linear
    if output.endswith("pca"):
        expected = ((expected.clamp(-2, 2) + 2) * 255 / 4).round()  # the vectors are the identity
    torch.testing.assert_close(out, expected)


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_any_chunking_equals_the_clip(data: st.DataObject) -> None:
    hop = data.draw(st.sampled_from([1, 20, 25, 40, 96]))
    net = narrow(hop_frames=hop).double()
    chunks = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    x = sound(sum(chunks), data.draw(st.integers(1, 2)), hop).double()
    state = net.init_state(len(x))
    parts = [net.forward_steps(part, state) for part in x.split(chunks, 1)]
    torch.testing.assert_close(torch.cat(parts, 1), net(x))
    assert net.newest_spectrum(state).shape == (len(x), chunks[-1] * hop, 64)


def test_size_of_the_published_network() -> None:
    with torch.device("meta"):
        full = VGGish()
    places = [(96 * 64, 1, 64), (48 * 32, 64, 128), (24 * 16, 128, 256), (24 * 16, 256, 256)]
    places += [(12 * 8, 256, 512), (12 * 8, 512, 512)]
    network = sum(9 * p * i * o for p, i, o in places)
    network += 12288 * 4096 + 4096 * 4096 + 4096 * 128
    assert full.count_macs() == network + full.mel.count_macs(25)
    assert sum(p.numel() for p in full.parameters()) == 72_141_184
