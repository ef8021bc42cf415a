"""EfficientAT: the published arithmetic, its windows, its import and the weights in the package."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.core.audioset import kinds_among
from costream.core.label_sets import AUDIOSET_521, AUDIOSET_527
from costream.core.records import AudioFormat
from costream.models.audio.efficientat import (
    BANDS,
    SAMPLE_RATE_HZ,
    SHORTEST,
    EfficientAt,
    EfficientAtMel,
    mel_matrix,
)
from costream.models.audio.windows import SpectrogramWindows
from costream.models.build import build
from costream.models.catalogue import load_model
from costream.models.importing import import_files
from costream.models.random_init import random_model
from costream.runtime.segments import IndependentSegmenter
from costream.sources.base import SourceOptions
from costream.sources.uris import open_source
from costream.weights_io.card import Timeline
from kit import foreign_sound
from kit.paths import ROOT
from kit.reading import contents

PACK = ROOT.parent / "shared" / "packs" / "teachers_audio.tar"
STREET = ROOT / "samples" / "street.ogg"
SILENT = (np.log(1e-5) + 4.5) / 5  # a frame of silence


@torch.no_grad()
def test_the_published_file_gives_the_published_network(tmp_path: Path) -> None:
    published = foreign_sound.EfficientAtModules()
    torch.save(published.state_dict(), tmp_path / "mn01_as.pt")
    card, tensors = import_files([tmp_path / "mn01_as.pt"], "mn01", {})
    net = build(card, tensors)[0].eval()
    for frames in (32, 100, 333):
        x = torch.randn(2, frames, BANDS)
        expected = published(x.transpose(1, 2)[:, None])
        torch.testing.assert_close(net(x), expected, rtol=1e-4, atol=1e-5)
    assert (card.task, card.frontend, card.rate_hz) == ("audio tagging", "efficientat-mel", 2.0)


def test_frames_at_16_khz_are_those_of_the_same_sound_at_32_khz() -> None:
    resample = pytest.importorskip("soxr").resample
    options = SourceOptions(sound=AudioFormat(16_000, 16_000))
    wave = contents(open_source(str(STREET), options)).samples[: 12 * 16_000]
    double = torch.from_numpy(resample(wave, 16_000, 32_000)).view(1, -1, 8000)
    expected = EfficientAtMel(25)(double).flatten(1, 2)[0]
    front = EfficientAtMel(25, 16_000)
    found = front(torch.from_numpy(wave).view(1, -1, front.block)).flatten(1, 2)[0]
    low = mel_matrix()[257:].sum(0) == 0  # bands below 8 kHz
    near = (found - expected)[1:, low].abs()
    assert near.mean() < 0.02  # in fifths of ln(power)
    assert near.quantile(0.99) < 0.2
    silent = mel_matrix()[:257].sum(0) == 0
    assert silent.sum() > 10
    torch.testing.assert_close(found[:, silent], torch.full_like(found[:, silent], SILENT))


@pytest.mark.parametrize(("frames", "rate_hz"), [(0, 32_000), (25, 44_100), (25, 8000)])
def test_other_rates_are_refused(frames: int, rate_hz: int) -> None:
    with pytest.raises(ValueError, match="is not"):
        EfficientAtMel(frames, rate_hz)


@torch.no_grad()
def test_a_step_is_the_network_on_the_newest_frames() -> None:
    net, front = EfficientAt(3, 0.1, 40, 200).eval(), EfficientAtMel(40)
    sound = torch.randn(2, 7, front.block) / 8
    frames = front(sound).flatten(1, 2)
    state, heard = net.init_state(2), front.init_state(2)
    for k, block in enumerate(sound.unbind(1), 1):
        given = net.forward_step(front.forward_step(block, heard), state).logits
        window = frames[:, max(0, 40 * (k - 5)) : 40 * k]
        silence = torch.full((2, max(0, SHORTEST - window.shape[1]), BANDS), net.silence)
        torch.testing.assert_close(given, net(torch.cat([silence, window], 1)))
    together = net.forward_steps(front(sound), net.init_state(2)).logits
    torch.testing.assert_close(together[:, -1], given)


@torch.no_grad()
def test_streams_of_other_ages_step_together() -> None:
    net = EfficientAt(3, 0.1).eval()
    rows = torch.randn(2, 6, net.hop_frames, BANDS)
    late, both = net.init_state(1), net.init_state(2)
    net.forward_steps(rows, both)
    both.reset([1])
    given = net.forward_steps(rows, both).logits[1:]
    torch.testing.assert_close(given, net.forward_steps(rows[1:], late).logits)


class _Loudness(SpectrogramWindows):
    """A network whose only score is the mean of its window."""

    def __init__(self, hop_frames: int, window_frames: int) -> None:
        super().__init__(1, hop_frames, window_frames, 1, 0.0, 1)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, frames: Tensor) -> Tensor:
        return frames.mean(1) * self.scale


@torch.no_grad()
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
@pytest.mark.parametrize(("hop", "window"), [(50, 200), (48, 96), (20, 20), (25, 210)])
def test_the_middle_of_what_is_shown_is_the_middle_of_the_sound(
    hop: int, window: int, share: float
) -> None:
    """At any threshold: from the share of a window that a sound has to fill on."""
    net = _Loudness(hop, window)
    delay_s, rate_hz, late = net.delay_steps * hop / 100, 100 / hop, []
    for begin in range(600, 600 + hop):
        sound = torch.zeros(1, 2000 // hop * hop, 1)
        sound[:, begin : begin + 500] = 1
        steps = torch.unflatten(sound, 1, (-1, hop))
        scores = net.forward_steps(steps, net.init_state()).logits[0].numpy()
        line = IndependentSegmenter(
            ("a",), Timeline(share, low=share), rate_hz, delay_s, ahead=True
        )
        found = [s for k, p in enumerate(scores, 1) for s in line.push(k / rate_hz, p)]
        found += line.flush()
        late.append((found[0].start_s + found[-1].end_s) / 2 - (begin + 250) / 100)
    assert abs(np.mean(late)) < 0.02
    assert np.abs(late).max() < hop / 100


def test_a_new_network_is_as_late_as_an_imported_one() -> None:
    assert random_model("efficientat", "name", {})[0].delay_s == 1.25
    assert random_model("yamnet", "name", {})[0].delay_s == pytest.approx(0.72)
    assert load_model("mn04").info.card.delay_s == 1.25


@pytest.mark.slow
@torch.no_grad()
def test_a_tone_is_shown_when_it_sounds() -> None:
    model = load_model("mn04")
    card, times, late = model.info.card, torch.arange(14 * SAMPLE_RATE_HZ) / SAMPLE_RATE_HZ, []
    beep = card.labels.index("Beep, bleep")
    for begin_s in (5.0, 5.1, 5.2, 5.3, 5.4):
        sounds = (times >= begin_s) & (times < begin_s + 3.7)
        wave = torch.where(sounds, 0.3 * torch.sin(2 * torch.pi * 1000 * times), 0.0)
        tokens = model.frontend((wave + 1e-4 * torch.randn(len(wave))).view(1, -1, 16_000))
        logits = model.network.forward_steps(tokens, model.network.init_state()).logits[0]
        steps = (logits[:, beep].sigmoid() > 0.2).nonzero().flatten()
        begin, end = steps[0] + 1, steps[-1] + 2  # the time of a step is the end of its sound
        late.append(float(begin + end) / 4 - card.delay_s - (begin_s + 1.85))
    assert abs(np.mean(late)) < 0.2


def test_the_spectrogram_is_the_published_one() -> None:
    """But for the frames at both ends, where the published one mirrors the sound."""
    sound = torch.randn(16_000, dtype=torch.float64) / 8
    emphasised = F.pad((sound[1:] - 0.97 * sound[:-1])[None], (512, 512), mode="reflect")[0]
    window = F.pad(torch.hann_window(800, periodic=False, dtype=torch.float64), (112, 112))
    power = torch.fft.rfft(emphasised.unfold(0, 1024, 320) * window).abs() ** 2
    expected = ((power @ mel_matrix() + 1e-5).log() + 4.5) / 5
    front = EfficientAtMel(50).double()
    front.mel.matrix = mel_matrix()
    front.mel.hann = torch.hann_window(800, periodic=False, dtype=torch.float64)
    # Frame k of the published begins 400 samples before 320 k of the emphasised sound.
    given = front(F.pad(sound[81:], (0, 81))[None, None]).flatten(0, 2)
    np.testing.assert_allclose(given[2:49], expected[2:49], rtol=0, atol=1e-6)


def test_labels_are_those_of_audioset() -> None:
    assert (len(set(AUDIOSET_527.names)), len(AUDIOSET_521.names)) == (527, 521)
    assert [AUDIOSET_527.names[k] for k in (0, 1, 137, 526)] == [
        *("Speech", "Male speech, man speaking", "Music", "Field recording")
    ]
    kinds = kinds_among([name.lower() for name in AUDIOSET_527.names])
    assert "male singing" in kinds["singing"]


def test_operations_and_weights_are_those_published() -> None:
    net = EfficientAt(527, 0.4, 50, 1000)
    assert sum(p.numel() for p in net.parameters()) == 978_679
    assert round(net.count_macs() / 1e6) == 111


@torch.no_grad()
@pytest.mark.parametrize(
    "frames",  # 0.3 s to 10 minutes
    [
        32,
        150,
        1000,
        pytest.param(6001, marks=pytest.mark.slow),
        pytest.param(60_000, marks=pytest.mark.slow),
    ],
)
def test_the_weights_in_the_package_are_the_teacher(tmp_path: Path, frames: int) -> None:
    runtime = pytest.importorskip("onnxruntime")
    if not PACK.exists():
        pytest.skip("needs the pack of teachers")
    with tarfile.open(PACK) as archive:
        archive.extract("teachers_audio/mn04_as.onnx", tmp_path, filter="data")
    session = runtime.InferenceSession(str(tmp_path / "teachers_audio" / "mn04_as.onnx"))
    net = load_model("mn04").network
    x = torch.randn(1, frames, BANDS)
    expected = session.run(["logits"], {"mel": x.transpose(1, 2)[:, None].numpy()})[0]
    np.testing.assert_allclose(net(x).numpy(), expected, rtol=3e-5, atol=1e-4)


def test_the_sounds_of_a_street_are_recognised() -> None:
    model = load_model("mn04")
    size = model.frontend.block
    sound = SourceOptions(sound=AudioFormat(SAMPLE_RATE_HZ, size))
    wave = torch.from_numpy(contents(open_source(str(STREET), sound)).samples)
    blocks = wave[: len(wave) // size * size].view(1, -1, size)
    with torch.no_grad():
        tokens = model.frontend(blocks)
        scores = model.network.forward_steps(tokens, model.network.init_state()).logits[0].sigmoid()
    names = model.info.card.labels
    at = {5: "Dog", 12: "Siren", 18: "Baby cry, infant cry"}
    for second, name in at.items():
        assert name in [names[k] for k in scores[2 * second].topk(5).indices]
