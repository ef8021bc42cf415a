"""YAMNet: the published arithmetic, its two kinds of file, and labels that overlap."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from costream.core.errors import ModelError
from costream.core.label_sets import AUDIOSET_521
from costream.core.records import AudioFormat
from costream.models.audio.logmel import OFFSET, LogMelFrames
from costream.models.audio.mel import LogMel
from costream.models.audio.yamnet import FRAMES, STRIDES, YamNet
from costream.models.build import build, save_model
from costream.models.importing import import_files
from costream.models.random_init import random_model
from costream.runtime.segments import IndependentSegmenter, Segmenter
from costream.sources.base import SourceOptions
from costream.sources.uris import open_source
from costream.weights_io.card import Timeline
from kit import foreign_sound
from kit.paths import ROOT
from kit.reading import contents
from kit.runs import run
from kit.tflite_teacher import teacher

WINDOW = 15_600  # samples of a patch
STREET = ROOT / "samples" / "street.ogg"


def spectrogram(matrix: Tensor) -> LogMel:
    """Return the published spectrogram, which begins with the first sample."""
    mel = LogMel(64, 400, 160, 512, lead=0, power=1, offset=OFFSET)
    mel.matrix.copy_(matrix)
    return mel


def as_published(tensors: dict[str, Tensor], patches: Tensor) -> Tensor:
    """Compute logits from the port's tensors layer by layer, batch norms as such."""

    def layer(x: Tensor, name: str, stride: int, groups: int, pad: bool) -> Tensor:
        if pad:
            x = F.pad(x, (0, 1, 0, 1) if stride == 2 else (1, 1, 1, 1))
        x = F.conv2d(x, tensors[f"{name}.conv.weight"], stride=stride, groups=groups)
        norm = [tensors[f"{name}.bn.{end}"] for end in ("running_mean", "running_var")]
        affine = [tensors[f"{name}.bn.{end}"] for end in ("weight", "bias")]
        return F.relu(F.batch_norm(x, *norm, *affine, eps=1e-4))

    x = layer(patches[:, None], "layer1.fused", 2, 1, True)
    for k, stride in enumerate(STRIDES[1:], 2):
        x = layer(x, f"layer{k}.depthwise_conv", stride, x.shape[1], True)
        x = layer(x, f"layer{k}.pointwise_conv", 1, 1, False)
    return F.linear(x.mean((2, 3)), tensors["classifier.weight"], tensors["classifier.bias"])


@torch.no_grad()
def test_its_scores_are_those_of_the_published_network() -> None:
    scores, weights = teacher()
    matrix, net = weights.pop("mel"), YamNet(521).eval()
    net.load_state_dict(weights)
    ours = LogMelFrames().mel.matrix
    assert (matrix - ours).abs().max() < 1 / 254  # the teacher's is rounded to 8 bits
    sound = SourceOptions(sound=AudioFormat(16_000, 16_000))
    wave = contents(open_source(str(STREET), sound)).samples
    for begin in range(0, len(wave) - WINDOW, 3 * 7680):
        part = wave[begin : begin + WINDOW]
        expected, patch = scores(part), spectrogram(matrix)(torch.from_numpy(part)[None])
        given = net(patch)[0].sigmoid().numpy()
        np.testing.assert_allclose(given, expected, rtol=0, atol=1e-4)
        best = [k for k in np.argsort(-expected)[:5] if expected[k] > 1e-3]
        assert list(np.argsort(-given)[: len(best)]) == best


def test_operations_and_weights_are_those_published() -> None:
    net = YamNet(521)
    assert round(net.count_macs() / 1e6, 1) == 69.2
    assert round(sum(p.numel() for p in net.parameters()) / 1e6, 1) == 3.7


@torch.no_grad()
def test_a_stream_gives_the_patches_of_the_whole_recording() -> None:
    net, front = YamNet(7, 25, foreign_sound.YAMNET_WIDTHS).double(), LogMelFrames(25).double()
    blocks = torch.randn(2, 9, front.block, dtype=torch.float64) / 4
    frames = front.mel(blocks.flatten(1))
    silence = torch.full((2, FRAMES - 25, 64), math.log(OFFSET), dtype=torch.float64)
    patches = torch.cat([silence, frames], 1).unfold(1, FRAMES, 25).transpose(2, 3)
    expected = net(patches.flatten(0, 1)).unflatten(0, (2, 9))
    heard, state = front.init_state(2), net.init_state(2)
    assert net.warmup(state) == (True, True)
    first = [
        net.forward_step(front.forward_step(x, heard), state).logits for x in blocks.unbind(1)[:4]
    ]
    rest = net.forward_steps(front.forward_steps(blocks[:, 4:], heard), state).logits
    torch.testing.assert_close(torch.cat([torch.stack(first, 1), rest], 1), expected)
    assert net.warmup(state) == (False, False)
    assert [net.warmup(state, ago)[0] for ago in (5, 6)] == [False, True]


@torch.no_grad()
def test_the_file_of_the_port_gives_the_published_network(tmp_path: Path) -> None:
    tensors, patches = foreign_sound.yamnet(), torch.randn(3, FRAMES, 64)
    expected = as_published(tensors, patches)
    torch.save(tensors, tmp_path / "small.pth")
    card, given = import_files([tmp_path / "small.pth"], "yamnet", {})
    net = build(card, given)[0].eval()
    torch.testing.assert_close(net(patches), expected, rtol=1e-4, atol=1e-5)
    assert (card.task, card.frontend, card.rate_hz) == ("audio tagging", "logmel", 100 / 48)
    assert card.timeline.threshold == 0.3


@torch.no_grad()
def test_the_keras_file_gives_the_same(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    tensors, patches = foreign_sound.yamnet(), torch.randn(3, FRAMES, 64)
    plain = {k: torch.ones_like(v) if k.endswith("bn.weight") else v for k, v in tensors.items()}
    with h5py.File(tmp_path / "small.h5", "w") as file:
        for name, value in foreign_sound.yamnet_in_keras(plain).items():
            file[name] = value.numpy()
    card, given = import_files([tmp_path / "small.h5"], "yamnet", {})
    net = build(card, given)[0].eval()
    torch.testing.assert_close(net(patches), as_published(plain, patches), rtol=1e-4, atol=1e-5)


def test_other_files_are_named(tmp_path: Path) -> None:
    for name, content, words in (
        ("page.pth", b"\n<!DOCTYPE html><html><body>Sign in</body></html>", "an HTML page"),
        ("yamnet.tflite", b"\x1c\0\0\0TFL3" + bytes(64), "damaged or not a checkpoint"),
        ("movinet.tar.gz", b"\x1f\x8b\x08\0" + bytes(64), "a gzip archive"),
        ("noise.bin", b"nothing of the kind" * 4, "not a checkpoint: neither"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ModelError, match=rf"{name}: {words}"):
            import_files([tmp_path / name], "x", {})


def test_labels_are_those_of_the_class_map() -> None:
    names = AUDIOSET_521.names
    assert (len(names), len(set(names))) == (521, 521)
    assert [names[k] for k in (0, 132, 494, 520)] == [
        *("Speech", "Music", "Silence", "Field recording")
    ]


def test_segments_of_a_label_are_those_it_would_have_alone() -> None:
    labels, rng = ("a", "b", "c"), np.random.default_rng(0)
    scores = (np.repeat(rng.random((40, 3)), 5, 0) + rng.random((200, 3))) / 2
    timeline = Timeline(thresholds={"b": 0.7})
    together, found = IndependentSegmenter(labels, timeline, 4.0, 0.25), []
    for k, row in enumerate(scores):
        found += together.push(k / 4, row) if k != 100 else together.gap(24.75, 25.0)
    found += together.flush()
    for column, label in enumerate(labels):
        alone, expected = Segmenter((label,), timeline, 4.0, 0.25), []
        for k, row in enumerate(scores[:, column, None]):
            expected += alone.push(k / 4, row) if k != 100 else alone.gap(24.75, 25.0)
        assert [s for s in found if s.label == label] == expected + alone.flush()
        assert expected
    only = IndependentSegmenter(labels, timeline, 4.0, 0.25, ("c",))
    kept = [s for k, row in enumerate(scores[:100]) for s in only.push(k / 4, row)]
    assert {s.label for s in kept} == {"c"}


def test_a_run_names_all_that_is_heard_at_once(tmp_path: Path) -> None:
    settings = {"num_classes": 4, "widths": foreign_sound.YAMNET_WIDTHS}
    card, net, front = random_model("yamnet", "yamnet", settings)
    net.classifier.bias.data.copy_(torch.tensor([2.0, 1.0, -9.0, 3.0]))  # type: ignore[union-attr]
    net.classifier.weight.data.zero_()  # type: ignore[union-attr]
    save_model(tmp_path / "y.safetensors", card, net, front)  # type: ignore[arg-type]
    arguments = ["-m", str(tmp_path / "y.safetensors"), "-o", str(tmp_path), "-f", "csv"]
    run(
        "listen",
        "-m",
        "cotrans,cosounds",
        STREET,
        *arguments,
        "--end",
        4,
        "--only",
        "random 1,*3",
        "-f",
        "jsonl",
    )
    table = (tmp_path / "street.ogg.timeline.csv").read_text().splitlines()[1:]
    assert [line.split(",")[3] for line in table] == ["random 1", "random 3"]
    assert {line.split(",")[0] for line in table} == {table[0].split(",")[0]}
