"""The spectrogram of a stream is that of the whole, and librosa's."""

from __future__ import annotations

import librosa
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from costream.models.audio.mel import LogMel, MelBuffers, torchaudio_functional
from costream.nn.state import State

RATE = 16_000


def filled(**arguments) -> LogMel:
    return LogMel(bands=20, **arguments).fill(RATE, 50, 7800).double()


def noise(samples: int, batch: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(samples)
    return torch.randn(batch, samples, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize(("window", "hop", "fft"), [(500, 250, 512), (400, 160, 512), (64, 64, 64)])
def test_is_librosas_without_centring(window, hop, fft, power):
    mel = filled(window=window, hop=hop, fft=fft, lead=0, power=power)
    x = noise(5000)
    # librosa puts a short window into the middle of the transform: give it as many zeros around.
    margin = fft - window
    padded = np.pad(x[0].numpy(), (margin // 2, margin - margin // 2))
    spectrum = np.abs(
        librosa.stft(padded, n_fft=fft, hop_length=hop, win_length=window, center=False)
    )
    filters = librosa.filters.mel(sr=RATE, n_fft=fft, n_mels=20, fmin=50, fmax=7800)
    expected = np.log(filters.astype(np.float64) @ spectrum**power + mel.offset).T
    np.testing.assert_allclose(mel(x)[0].numpy(), expected, atol=1e-5)


@given(
    st.lists(st.integers(0, 700), min_size=1, max_size=12),
    st.sampled_from([(500, 250, 250), (400, 160, 0), (400, 160, 320), (64, 64, 0)]),
)
@settings(max_examples=60, deadline=None)
def test_any_blocks_give_the_same_as_the_clip(blocks, sizes):
    window, hop, lead = sizes
    mel, x = filled(window=window, hop=hop, lead=lead), noise(sum(blocks), 2)
    state = mel.init_state(2)
    frames = torch.cat([mel.forward_steps(part, state) for part in x.split(blocks, 1)], 1)
    torch.testing.assert_close(frames, mel(x), rtol=0, atol=1e-12)


@given(
    st.lists(st.sampled_from([1, 1, 1, 3]), min_size=1, max_size=8),
    st.sampled_from([(500, 250, 250), (400, 160, 240), (64, 64, 0), (65, 13, 52)]),
    st.sampled_from([1, 2]),
    st.sampled_from([512, 640]),
)
@settings(max_examples=40, deadline=None)
def test_blocks_laid_out_once_give_the_same_as_the_clip(counts, sizes, power, fft):
    """Also where others come between them."""
    window, hop, lead = sizes
    mel = filled(window=window, hop=hop, lead=lead, power=power, fft=fft)
    size = 8 * hop
    x = noise(sum(counts) * size, 3)
    state, frames = mel.init_state(3), []
    room = MelBuffers(mel, state.held, size)
    state.held = room.held
    for part in x.split([count * size for count in counts], 1):
        if part.shape[1] == size:
            frames.append(room.step(part))
            state.samples += size
        else:
            frames.append(mel.forward_steps(part, state))
    torch.testing.assert_close(torch.cat(frames, 1), mel(x), rtol=0, atol=1e-12)


def test_float32_blocks_give_the_same_as_the_clip_to_rounding():
    mel, x = filled().float(), noise(64_000).float()
    state = mel.init_state()
    frames = torch.cat([mel.forward_steps(part, state) for part in x.split(4000, 1)], 1)
    torch.testing.assert_close(frames, mel(x), rtol=0, atol=2e-5)


def test_frame_k_sees_its_samples_and_no_others():
    mel, x = filled(lead=0), noise(2000)
    before = mel(x)
    k = 3
    inside = x.clone()
    inside[0, k * 250 + 100] += 1.0
    assert (mel(inside)[0, k] - before[0, k]).abs().max() > 1e-6
    outside = x.clone()
    outside[0, : k * 250 + 1] = 0.0  # the window begins with a zero
    outside[0, k * 250 + 500 :] = 0.0
    torch.testing.assert_close(mel(outside)[0, k], before[0, k])


def test_streams_out_of_step_are_refused():
    mel = filled()
    ahead, fresh = mel.init_state(1), mel.init_state(1)
    mel.forward_steps(noise(100), ahead)
    with pytest.raises(ValueError, match="cannot step together"):
        mel.forward_steps(noise(50, 2), State.cat.__func__(type(ahead), [ahead, fresh]))


def test_silence_is_finite():
    assert bool(torch.isfinite(filled()(torch.zeros(1, 4000, dtype=torch.float64))).all())


@pytest.mark.parametrize("sizes", [{"hop": 0}, {"window": 600}, {"lead": 500}, {"power": 3}])
def test_sizes_that_make_no_sense_are_refused(sizes):
    with pytest.raises(ValueError, match="window"):
        LogMel(**sizes)


@pytest.mark.skipif(
    torchaudio_functional() is None or not torch.cuda.is_available(),
    reason="needs a CUDA device and a torchaudio that imports beside this torch",
)
def test_torchaudio_gives_the_same_on_a_gpu():
    mel, x = filled().float(), noise(16_000).float()
    torch.testing.assert_close(mel.cuda()(x.cuda()).cpu(), mel.cpu()(x), rtol=0, atol=1e-3)
