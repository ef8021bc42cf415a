"""``costream listen``: files, pipes, and a virtual microphone."""

from __future__ import annotations

import signal
import subprocess
import textwrap

import av
import numpy as np
import pytest

from kit import sound_nets
from kit.program import COSTREAM, environment, python
from kit.runs import records, refused, run, wait_until
from kit.virtual_microphone import RATE, VirtualMicrophone, needs_microphone, noise

MODELS = ("-m", "genres,sounds", "--weights")

RUN = """
    import sys
    import numpy as np
    import costream
    from costream.sources.base import SourceOptions
    from costream.sinks.registry import make_sinks
    from pathlib import Path

    class Collector:
        def __init__(self): self.samples = []
        def open(self, header): pass
        def write(self, record): pass
        def close(self, summary): pass
        def draw(self, picture): self.samples.append(picture.item.samples)

    folder = Path(sys.argv[1])
    model = costream.load_model("genres,sounds", folder)
    heard = Collector()
    costream.run(
        costream.open_source("mic", SourceOptions(sound=model.info.sound, end_s=3.0)),
        model,
        [heard, *make_sinks(["jsonl"], directory=folder, name="mic")],
    )
    np.save(folder / "heard.npy", np.concatenate(heard.samples))
"""


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    sound_nets.write(folder, "genres", ("jazz", "rock", "none"))
    sound_nets.write(folder, "sounds", ("dog", "rain", "wind", "silence"), seed=1, window=9)
    return folder


def predictions(lines, model):
    rows = [r for r in lines if r["type"] == "prediction" and r["model"] == model]
    return [[score for _, score in sorted(r["top"])] for r in rows]


def write_wav(path, samples, rate=16_000):
    with av.open(str(path), "w") as container:
        stream = container.add_stream("pcm_f32le", rate=rate, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples[None].astype(np.float32), "flt", "mono")
        frame.sample_rate = rate
        container.mux([*stream.encode(frame), *stream.encode()])
    return path


@pytest.fixture(scope="module")
def wav(tmp_path_factory):
    wave = 0.1 * np.random.default_rng(0).standard_normal(16_000 * 5)
    return write_wav(tmp_path_factory.mktemp("sound") / "noise.wav", wave)


def test_a_file_through_two_models(weights, wav, tmp_path):
    formats = ("-f", "jsonl,csv,audacity,eaf", "--threshold", "0.1")
    run("listen", "-m", "cotrans,cosounds", wav, *MODELS, weights, "-o", tmp_path, *formats)
    lines = records(tmp_path / "noise.wav.jsonl")
    header, summary = lines[0], lines[-1]
    assert [h["model"] for h in header["heads"]] == ["genres", "sounds"]
    assert (header["kind"], header["rate_hz"], header["duration_s"]) == ("audio", 4.0, 5.0)
    assert (summary["steps"], summary["media_s"]) == (20, 5.0)
    times = [r["time_s"] for r in lines if r["type"] == "compute"]
    assert times == [0.25 * (k + 1) for k in range(20)]
    assert summary["dense_macs"] > 3 * summary["macs"]
    for ending in ("predictions.csv", "timeline.csv", "audacity.txt", "eaf"):
        assert (tmp_path / f"noise.wav.{ending}").stat().st_size > 0


@pytest.mark.long
def test_a_pipe_says_what_the_file_says(weights, wav, tmp_path):
    whole = records(
        run("listen", "-m", "cotrans,cosounds", wav, *MODELS, weights, "-q", "-f", "jsonl").stdout
    )
    bare = tmp_path / "bare.pcm"
    bare.write_bytes(wav.read_bytes()[-16_000 * 5 * 4 :])
    told = records(
        run(
            "listen",
            "-m",
            "cotrans,cosounds",
            bare,
            "--raw",
            "f32le:16000",
            *MODELS,
            weights,
            "-q",
            "-f",
            "jsonl",
        ).stdout
    )
    np.testing.assert_allclose(predictions(told, "sounds"), predictions(whole, "sounds"), atol=2e-6)
    for args, data in (
        (("-",), wav.read_bytes()),
        (("-", "--raw", "f32le:16000"), bare.read_bytes()),
    ):
        done = subprocess.run(
            [
                *COSTREAM,
                "listen",
                "-m",
                "cotrans,cosounds",
                *args,
                *MODELS,
                weights,
                "-f",
                "jsonl",
                "-q",
            ],
            input=data,
            capture_output=True,
            env=environment(),
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        lines = records(done.stdout.decode())
        for model in ("genres", "sounds"):
            np.testing.assert_allclose(
                predictions(lines, model), predictions(whole, model), atol=2e-6
            )


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ((), 2, "nothing to listen to"),
        (("--mic", "desk", "a.wav"), 2, "exclude each other"),
        (("no-such-file.wav",), 4, "no such file"),
        (("--raw", "s16le", "-"), 2, "FORMAT:RATE"),
    ],
)
def test_impossible_requests_are_reported_in_one_line(weights, args, code, message):
    refused(code, message, "listen", "-m", "cotrans,cosounds", *args, *MODELS, weights)


@pytest.mark.slow
@needs_microphone
def test_a_microphone_says_what_a_file_of_the_same_sound_says(weights, tmp_path):
    with VirtualMicrophone(tmp_path / "server") as microphone:
        played = noise(20)
        microphone.play(played)
        done = python("-c", textwrap.dedent(RUN), weights, env=microphone.environment)
        assert done.returncode == 0, done.stderr
    heard = np.load(weights / "heard.npy")
    assert len(heard) == 3 * 16_000
    lines = records(weights / "mic.jsonl")
    assert lines[0]["kind"] == "audio"
    assert all(0 < r["lag_s"] < 2 for r in lines if r["type"] == "compute")
    path = write_wav(tmp_path / "heard.wav", heard)
    again = records(
        run("listen", "-m", "cotrans,cosounds", path, *MODELS, weights, "-q", "-f", "jsonl").stdout
    )
    for model in ("genres", "sounds"):
        np.testing.assert_allclose(predictions(lines, model), predictions(again, model), atol=2e-6)
    # What was heard is what was played, from some moment on.
    down = played.astype(np.float64).reshape(-1, RATE // 16_000).mean(1)
    spectra = np.fft.rfft(heard, 2 * len(down)), np.fft.rfft(down, 2 * len(down))
    match = np.fft.irfft(spectra[1] * np.conj(spectra[0]))
    at = int(match[: len(down)].argmax())
    assert np.corrcoef(heard, down[at : at + len(heard)])[0, 1] > 0.75  # the resampler is steeper


@pytest.mark.slow
@needs_microphone
def test_ctrl_c_ends_listening_and_the_files_are_complete(weights, tmp_path):
    with VirtualMicrophone(tmp_path / "server") as microphone:
        microphone.play(noise(60))
        child = subprocess.Popen(
            [
                *(*COSTREAM, "listen", "-m", "cotrans,cosounds", "--mic", *MODELS, weights),
                *("-o", tmp_path / "out", "-f", "jsonl,csv,eaf"),
            ],
            env=environment(microphone.environment),
            stderr=subprocess.PIPE,
        )
        part = tmp_path / "out" / "mic.jsonl.part"
        wait_until(lambda: part.exists() and part.read_text().count('"prediction"') >= 8, child)
        child.send_signal(signal.SIGINT)
        assert child.wait(90) == 130
    assert records(tmp_path / "out" / "mic.jsonl")[-1]["complete"] is False
    assert (tmp_path / "out" / "mic.eaf").exists()
