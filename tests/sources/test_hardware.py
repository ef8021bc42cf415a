"""Hardware decoding of video, on machines with a device and without."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from costream.core.errors import SourceError, UsageError
from costream.core.records import VideoFrame
from costream.options.options import Options
from costream.runtime.options import check_options
from costream.sources.base import DecoderChoice, SourceOptions
from costream.sources.live.failures import ConnectionFailedError
from costream.sources.live.opening import choose_stream
from costream.sources.media import hardware
from costream.sources.uris import open_source
from kit.media import make_video
from kit.paths import SAMPLES

CHOICES: tuple[DecoderChoice, ...] = ("auto", "software", "hardware", "fast")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """Pretend that the machine has this device, or none."""
    hardware._note.cache_clear()
    return lambda name: monkeypatch.setattr(hardware, "hardware_device", lambda: name)


def stream(is_hwaccel: bool) -> Any:
    """Return what matters of a stream."""
    return SimpleNamespace(codec_context=SimpleNamespace(is_hwaccel=is_hwaccel, name="av1"))


def frames(path: Path, choice: DecoderChoice, end_s: float | None = None) -> list[VideoFrame]:
    source = open_source(str(path), SourceOptions(decoder=choice, end_s=end_s))
    source.open()
    try:
        found = [item for item in source.items() if isinstance(item, VideoFrame)]
        _ = [frame.rgb for frame in found]  # before the decoder is closed
        return found
    finally:
        source.close()


def pixels(path: Path, choice: DecoderChoice) -> list[np.ndarray]:
    return [frame.rgb for frame in frames(path, choice)]


def test_without_a_device_auto_decodes_in_software_and_says_so_once(
    device: Callable[[str | None], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    device(None)
    path = make_video(tmp_path / "clip.mp4")
    with caplog.at_level(logging.WARNING, "costream"):
        found = [pixels(path, "auto") for _ in range(2)]
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "decoded in software (no device here decodes video)"
    ]
    assert np.array_equal(found[0], pixels(path, "software"))


def test_hardware_without_a_device_is_one_error(
    device: Callable[[str | None], None], tmp_path: Path
) -> None:
    device(None)
    with pytest.raises(UsageError, match="--decoder hardware: no device here decodes video"):
        check_options(Options(decoder="hardware"), finds_objects=False, gated=False)
    for choice in ("auto", "software"):
        check_options(Options(decoder=choice), finds_objects=False, gated=False)
    with pytest.raises(SourceError, match=r"clip\.mp4: no device here decodes video; leave out"):
        pixels(make_video(tmp_path / "clip.mp4"), "hardware")


@pytest.mark.parametrize("choice", CHOICES)
def test_a_stream_that_the_device_decodes_is_fine(
    choice: DecoderChoice, device: Callable[[str | None], None], caplog: pytest.LogCaptureFixture
) -> None:
    device("cuda")
    hardware.check_stream(stream(True), choice, "clip.mp4")
    assert not caplog.records


def test_a_stream_that_the_device_does_not_decode(
    device: Callable[[str | None], None], caplog: pytest.LogCaptureFixture
) -> None:
    device("cuda")
    with pytest.raises(SourceError, match=r"clip\.mp4: cuda does not decode av1; leave out"):
        hardware.check_stream(stream(False), "hardware", "clip.mp4")
    hardware.check_stream(stream(False), "software", "clip.mp4")
    assert not caplog.records
    hardware.check_stream(stream(False), "auto", "clip.mp4")
    assert caplog.records[0].getMessage() == (
        "clip.mp4: decoded in software (cuda does not decode av1)"
    )


def test_a_feed_that_the_device_does_not_decode_is_given_up(
    device: Callable[[str | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    device("cuda")
    video = stream(False)
    monkeypatch.setattr("costream.sources.live.opening.video_stream", lambda *_: video)
    container: Any = SimpleNamespace(streams=SimpleNamespace(video=[video], audio=[]))
    with pytest.raises(ConnectionFailedError) as caught:
        choose_stream(container, SourceOptions(decoder="hardware"), "rtsp://cam/1")
    assert caught.value.loss.refused
    assert caught.value.loss.message.startswith("cuda does not decode av1")
    assert choose_stream(container, SourceOptions(decoder="auto"), "rtsp://cam/1") is video


def test_the_first_device_that_can_be_opened_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Accelerator:
        def __init__(self, name: str, allow_software_fallback: bool = False) -> None:
            self.name, self.falls_back = name, allow_software_fallback

        def create(self, codec: Any) -> None:
            if self.name != "vaapi":
                raise {"cuda": PermissionError, "drm": NotImplementedError}[self.name]

    monkeypatch.setattr(hardware, "HWAccel", Accelerator)
    for names, expected in ((["cuda", "drm", "vaapi"], "vaapi"), (["cuda"], None), ([], None)):
        monkeypatch.setattr(hardware, "hwdevices_available", lambda names=names: names)
        hardware.hardware_device.cache_clear()
        assert hardware.hardware_device() == expected
        chosen: Any = hardware.acceleration("auto")
        assert (None if chosen is None else (chosen.name, chosen.falls_back)) == (
            None if expected is None else (expected, True)
        )
        assert hardware.acceleration("software") is None
    hardware.hardware_device.cache_clear()


def test_without_loop_filters_there_are_as_many_frames_nearly_the_same() -> None:
    exact, fast = (frames(SAMPLES / "room.mp4", name, end_s=3.0) for name in ("software", "fast"))
    assert [frame.time_s for frame in fast] == [frame.time_s for frame in exact]
    distances = [np.abs(a.rgb.astype(int) - b.rgb).mean() for a, b in zip(fast, exact, strict=True)]
    assert 0 < max(distances) < 3


def test_fast_is_another_run_and_its_header_says_so() -> None:
    exact, fast = Options(), Options(decoder="fast")
    assert exact.identity == Options(decoder="hardware").identity != fast.identity
    assert fast.recorded == {**exact.recorded, "decoder": "fast"}
