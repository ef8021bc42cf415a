"""The annotated video: pictures, skeletons, labels and timelines stand where they belong."""

from __future__ import annotations

import tracemalloc
import wave
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import ImageFont

from costream.core.layouts import BODY_15, MEDIAPIPE_33
from costream.core.records import (
    AudioBlock,
    FeatureRow,
    Gap,
    Picture,
    Prediction,
    SkeletonFrame,
    VideoFrame,
)
from costream.draw.canvas import LEFT, RIGHT, WHITE
from costream.draw.lettering import fit_text, line_height, plain_text, text_mask, text_width
from costream.draw.palette import Palette, rgb_of
from costream.draw.panels import PANEL
from costream.draw.skeleton import SkeletonView, figure_in_picture
from costream.sinks.atomic import BinaryFile
from costream.sinks.overlay import Overlay
from costream.weights_io.card import Timeline
from kit.overlays import near, play

# A standing body as a Kinect sees it: y up, x to the camera's left, so its right hand is at +x.
STANDING = {
    "hips": (0, 0),
    "neck": (0, 0.5),
    "head": (0, 0.8),
    "left wrist": (-0.4, 0.0),
    "right wrist": (0.4, 0.0),
    "left ankle": (-0.1, -0.9),
    "right ankle": (0.1, -0.9),
}


def standing(i: int = 0, axes: int = 3, people: int = 1) -> SkeletonFrame:
    joints = np.zeros((people, 15, axes), np.float32)
    scores = np.zeros((people, 15), np.float32)
    for name, place in STANDING.items():
        joints[:, BODY_15.joints.index(name), :2] = place
        scores[:, BODY_15.joints.index(name)] = 1
    return SkeletonFrame(i, i / 10, joints, scores, BODY_15)


def frame(i: int, size: tuple[int, int] = (96, 128), drawing: Any = None) -> VideoFrame:
    return VideoFrame(i, i / 10, i, lambda: np.full((*size, 3), 90, np.uint8), drawing=drawing)


def test_a_picture_a_step_at_its_time(run: Any, tmp_path: Path) -> None:
    items = [frame(i) for i in (0, 1, 2, 3, 7, 8)]
    shown = play(tmp_path / "x.mp4", run, *(Picture(60 + f.time_s, f, None) for f in items))
    with av.open(str(tmp_path / "x.mp4")) as container:
        times = [round(float(f.time), 3) for f in container.decode(video=0)]
        assert times == [0.0, 0.1, 0.2, 0.3, 0.7, 0.8]
        context = container.streams.video[0].codec_context
        assert context.pix_fmt == "yuv420p"
        assert context.name == ("h264" if "libx264" in av.codecs_available else "mpeg4")
        assert context.width == 128
        assert context.height > 96
    for image in shown:
        assert near(image[:90], (90, 90, 90), 6).mean() > 0.99  # nothing on the picture itself


def test_the_larger_picture_is_drawn_upon_where_there_is_one(run: Any, tmp_path: Path) -> None:
    item = frame(0, drawing=lambda: np.full((240, 321, 3), 90, np.uint8))
    (image,) = play(tmp_path / "x.mp4", run, Picture(0.0, item, None))
    assert image.shape[1] == 322  # even, as the codec wants it
    assert near(image[100, :300], (90, 90, 90), 6).all()


def test_skeletons_are_drawn_where_they_are_in_the_picture(run: Any, tmp_path: Path) -> None:
    places = np.zeros((1, 33, 2), np.float32)
    scores = np.zeros((1, 33), np.float32)
    for name, place in (("left shoulder", (0.75, 0.25)), ("left elbow", (0.75, 0.75))):
        places[0, MEDIAPIPE_33.joints.index(name)] = place
        scores[0, MEDIAPIPE_33.joints.index(name)] = 0.9
    joints = np.zeros((1, 33, 3), np.float32)
    skeleton = SkeletonFrame(0, 0.0, joints, scores, MEDIAPIPE_33, places=places)
    shown = play(tmp_path / "x.mp4", run, Picture(0.0, frame(0, (240, 320)), skeleton))
    blue = near(shown[0][:240], LEFT, 60)
    rows, columns = np.nonzero(blue)
    assert abs(columns.mean() - 240) < 4
    assert abs(rows.min() - 60) < 8
    assert abs(rows.max() - 180) < 8


def test_persons_in_a_picture_have_their_numbers_and_actions(run: Any, tmp_path: Path) -> None:
    places = np.full((2, 33, 2), (0.25, 0.5), np.float32)
    places[1] = (0.75, 0.5)
    scores, joints = np.ones((2, 33), np.float32), np.zeros((2, 33, 3), np.float32)
    skeleton = SkeletonFrame(0, 0.0, joints, scores, MEDIAPIPE_33, places=places, persons=(4, 9))
    records: list[Any] = []
    for i, top in enumerate(((("walk", 0.9),), (("background", 0.9),))):
        records += [
            Prediction(i, i / 3, i, i, top, person=9),
            Picture(i / 3, frame(i, (480, 640)), skeleton),
        ]
    shown = play(tmp_path / "x.mp4", run, *records)
    above = [near(image[190:230], (128, 128, 128), 15) for image in shown]
    assert not above[0][:, :300].any()  # person 4 has no predictions
    widths = [np.nonzero(grey.any(0))[0] for grey in above]
    assert [columns.min() > 470 for columns in widths] == [True, True]
    named = text_width("person 9", 13) + 8, text_width("person 9: walk 0.90", 13) + 8
    assert np.ptp(widths[1]) == pytest.approx(named[0], abs=4)
    assert np.ptp(widths[0]) == pytest.approx(named[1], abs=4)


def test_skeletons_without_a_picture_stand_upright_on_a_page(run: Any, tmp_path: Path) -> None:
    skeletons = [standing(i, people=2) for i in range(3)]
    shown = play(tmp_path / "x.mp4", run, *(Picture(s.time_s, s, s) for s in skeletons))
    page = shown[-1][:700]
    right, left = (np.nonzero(near(page, color, 60)) for color in (RIGHT, LEFT))
    assert left[1].mean() > right[1].mean() + 50  # it faces us: its right hand is at our left
    light = np.nonzero(near(page, WHITE))
    assert light[0].mean() < left[0].max()  # head and trunk above the feet


def test_views() -> None:
    view = SkeletonView()
    figure = view.figure(standing())
    names = list(BODY_15.joints)
    head, foot = (figure.points[0, names.index(n)] for n in ("head", "left ankle"))
    assert 0 <= head[1] < foot[1] <= 1
    assert figure.sides[names.index("left ankle")] == -1
    # A picture's x is to the right already.
    hands = [
        view.figure(standing(axes=axes)).points[0, names.index("right wrist")] for axes in (2, 3)
    ]
    assert hands[0][0] > 0.5 > hands[1][0]
    nobody = replace(standing(), scores=np.zeros((1, 15), np.float32))
    assert not view.figure(nobody).seen.any()
    assert figure_in_picture(standing()) is None
    mad = replace(standing(), joints=np.full((1, 15, 3), np.inf, np.float32))
    assert view.figure(mad).points.shape == (1, 15, 2)


def test_coordinates_that_make_no_sense_do_no_harm(run: Any, tmp_path: Path) -> None:
    skeletons = []
    for value in (np.inf, np.nan, 1e30, -1e9):
        skeleton = standing()
        skeleton.joints[0, 1] = value
        skeletons.append(skeleton)
    shown = play(tmp_path / "x.mp4", run, *(Picture(i / 10, s, s) for i, s in enumerate(skeletons)))
    assert len(shown) == 4


def test_the_best_labels_the_timeline_and_its_legend(run: Any, tmp_path: Path) -> None:
    """The timeline has the best event above its threshold; the background is thin and grey."""
    options = {"timeline": Timeline(threshold=0.6)}
    header = replace(run.header, labels=("none", "walk", "sit"), background="none", rate_hz=1.0)
    known = replace(run, header=replace(header, options=options, duration_s=10.0))
    records: list[Any] = []
    for i in range(10):
        top = (("walk", 0.9), ("none", 0.05)) if i < 5 else (("none", 0.5), ("sit", 0.5))
        records += [
            Prediction(i, float(i), i, i, top),
            Picture(float(i), frame(i, (96, 400)), None),
        ]
    shown = play(tmp_path / "x.mp4", known, *records)
    panel, walk = shown[-1][96:], Palette.of(header).paint("walk").rgb
    strip = panel[98 + 18]
    assert near(strip[10:190], walk).all()
    assert not near(strip[210:], walk).any()
    assert near(panel[140:], walk).sum() > 100  # the legend
    first = shown[0][96:]
    assert near(first[12:37], WHITE).sum() > 60  # "walk 0.90", as it is active
    assert not near(panel[12:37], WHITE).any()
    sit, none = (Palette.of(header).paint(label).rgb for label in ("sit", "none"))
    bars = [near(panel[top : top + 25], color, 15).sum() for top, color in ((12, none), (37, sit))]
    assert 0 < 3 * bars[0] < bars[1]


def test_each_of_several_persons_has_a_row_and_a_lane(run: Any, tmp_path: Path) -> None:
    header = replace(run.header, labels=("none", "walk", "sit"), background="none", rate_hz=1.0)
    known = replace(run, header=replace(header, duration_s=10.0))
    records: list[Any] = []
    for i in range(10):
        records.append(Prediction(i, float(i), i, i, (("walk", 0.9), ("none", 0.1)), person=4))
        if i < 5:
            records.append(Prediction(i, float(i), i, i, (("sit", 0.8), ("none", 0.2)), person=7))
        records.append(Picture(float(i), frame(i, (96, 400)), None))
    shown = play(tmp_path / "x.mp4", known, *records)
    walk, sit, none = (Palette.of(header).paint(label).rgb for label in ("walk", "sit", "none"))
    both, alone = shown[4][96:], shown[-1][96:]
    for panel, second in ((both, sit), (alone, none)):  # a single person has their second label
        assert near(panel[12:37], walk, 40).sum() > 100
        assert near(panel[37:62], second, 40).sum() > 20
    above, below = alone[98 + 9], alone[98 + 27]
    assert near(above[10:350], walk, 40).all()
    assert near(below[10:190], sit, 40).all()
    assert near(below[210:350], walk, 40).all()
    named = text_width("4 walk", 17), text_width("walk", 17)
    written = [np.nonzero(near(p[12:37, :90], WHITE, 40).any(0))[0] for p in (both, alone)]
    assert [np.ptp(columns) for columns in written] == [pytest.approx(w, abs=5) for w in named]


def test_a_timeline_of_unknown_length_scrolls(run: Any, tmp_path: Path) -> None:
    header = replace(run.header, labels=("walk",), background=None, rate_hz=1.0, duration_s=None)
    records: list[Any] = []
    for i in range(0, 130, 2):
        score = 0.9 if i < 20 or i > 110 else 0.1
        records += [Prediction(i, float(i), i, i, (("walk", score),))]
        records += [Picture(float(i), frame(i, (40, 120)), None)]
        records += [Gap(20.0, 22.0, "no data")] if i == 20 else []
    image = play(tmp_path / "x.mp4", replace(run, header=header), *records)[-1]
    painted = near(image[40 + 98 + 18], rgb_of("#6c72dc"))
    assert not painted[:70].any()
    assert painted[90:112].all()


def test_pictures_that_change_their_size(run: Any, tmp_path: Path) -> None:
    sizes = [(96, 128), (200, 300), (40, 60)]
    shown = play(
        tmp_path / "x.mp4",
        run,
        *(Picture(i / 10, frame(i, size), None) for i, size in enumerate(sizes)),
        Picture(0.3, FeatureRow(3, 0.3, np.zeros(4, np.float32)), None),
    )
    assert len({image.shape for image in shown}) == 1
    assert len(shown) == 4


@pytest.mark.long
def test_long_videos_take_constant_memory(run: Any, tmp_path: Path) -> None:
    sink = Overlay(BinaryFile(tmp_path / "x.mp4"))
    sink.open(run.header)
    item = frame(0, (48, 64))
    tracemalloc.start()
    try:
        sizes = []
        for i in range(1200):
            sink.write(Prediction(i, i / 10, i, i, (("walk", 0.9),)))
            sink.draw(Picture(i / 10, item, None))
            if i % 300 == 299:
                sizes.append(tracemalloc.get_traced_memory()[0])
        sink.close(run.summary)
    finally:
        tracemalloc.stop()
    assert sizes[-1] - sizes[0] < 100_000  # 900 pictures are over 20 MB


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("walk", "walk"),
        ("Grüße\n né", "Grüße né"),
        ("\U0001d518\U0001f697 go", "U? go"),
        ("\x1b[1m", "?[1m"),
    ],
)
def test_letters(text: str, plain: str) -> None:
    assert plain_text(text) == plain
    mask = text_mask(text, 20)
    assert mask.shape == (line_height(20), text_width(text, 20))
    assert len(np.unique(mask)) > 20  # smooth edges
    short = fit_text(text * 9, text_width(text, 20), 20)
    assert short.endswith("…")
    assert text_width(short, 20) <= text_width(text, 20)


def test_letters_of_other_scripts_in_a_font_of_this_machine() -> None:
    text = "Ա ★"
    try:
        ImageFont.truetype("DejaVuSans.ttf", 16)
    except OSError:
        pytest.skip("DejaVuSans.ttf is not installed (Debian: fonts-dejavu-core)")
    assert plain_text(text) == text
    assert text_width(f"walk {text}", 20) > text_width("walk ", 20) + 20
    assert text_mask(f"{text} walk", 20).shape == text_mask(f"walk {text}", 20).shape


def test_each_head_has_a_panel(run_of_heads: Any, tmp_path: Path) -> None:
    silence = AudioBlock(0, 0.25, np.zeros(4000, np.float32))
    records = [
        record
        for i in range(1, 9)
        for record in (
            Prediction(i, i / 4, i, i, (("jazz", 0.9),), model="cotrans"),
            Prediction(i, i / 4, i, i, (("<siren>", 0.45),), model="cosounds"),
            Picture(i / 4, silence, None),
        )
    ]
    shown = play(tmp_path / "x.mp4", run_of_heads, *records)
    image = shown[-1]
    assert image.shape[0] == 400 + 2 * PANEL
    # Colours go on from head to head. Siren's 0.45 is above the threshold of its own head, below
    # that of the other.
    palette = Palette.of(run_of_heads.header)
    for k, label in enumerate(("jazz", "<siren>")):
        strip = image[400 + k * PANEL :][98:134]
        assert near(strip, palette.paint(label).rgb, 60).sum() > 100


SOUND_HZ = 16_000


@pytest.fixture
def beep(tmp_path: Path) -> Path:
    """Two seconds of sound: silence, then a tone."""
    path, t = tmp_path / "beep.wav", np.arange(SOUND_HZ) / SOUND_HZ
    samples = np.concatenate([np.zeros(SOUND_HZ), 0.5 * np.sin(2 * np.pi * 440 * t)])
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, SOUND_HZ, 0, "NONE", ""))
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return path


def loudness(path: Path) -> list[float]:
    """The level of each tenth of a second of a file's sound; empty if it has none."""
    with av.open(str(path)) as container:
        if not container.streams.audio:
            return []
        frames = [frame.to_ndarray()[0] for frame in container.decode(audio=0)]
    samples = np.concatenate(frames)
    return [float(np.abs(part).max()) for part in np.array_split(samples, len(samples) // 1600)]


@pytest.mark.parametrize("begin_s", [0.0, 0.5])
def test_sound_is_seen_and_heard(run: Any, tmp_path: Path, beep: Path, begin_s: float) -> None:
    header = replace(run.header, source=str(beep), kind="audio", rate_hz=4.0, duration_s=2.0)
    spectra = [np.full((16, 64), -12.0, np.float32) for _ in range(8)]
    for spectrum in spectra[4:]:
        spectrum[:, 10] = 0.0
    pictures = []
    for i in range(int(4 * begin_s), 8):
        block = AudioBlock(i, (i + 1) / 4, np.zeros(4000, np.float32))
        pictures.append(Picture(block.time_s, block, None, spectra[i]))
    shown = play(tmp_path / "x.mp4", replace(run, header=header), *pictures)
    assert len(shown) == 3 * len(pictures)  # it scrolls
    bright = (shown[-1][:356].astype(int).sum(-1) > 500).any(0)
    assert bright[-90:-6].all()  # the tone, a tenth of the width a second
    assert not bright[:-100].any()
    level = loudness(tmp_path / "x.mp4")
    assert len(level) == pytest.approx(10 * (2 - begin_s), abs=1)
    quiet = int(10 * (1 - begin_s))
    assert max(level[: quiet - 1]) < 0.02
    assert min(level[quiet + 1 : quiet + 8]) > 0.4


def test_without_a_file_to_read_again_there_is_not_a_sound(
    run: Any, tmp_path: Path, beep: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "text.wav").write_text("no sound")
    block = AudioBlock(0, 0.25, np.zeros(4000, np.float32))
    for source, began, words in (
        ("-", None, "cannot be read a second time"),
        (str(beep), "2026-01-01T00:00:00Z", "cannot be read a second time"),
        (str(tmp_path / "text.wav"), None, ""),
    ):
        header = replace(run.header, source=source, kind="audio", rate_hz=4.0, began=began)
        caplog.clear()
        path = tmp_path / f"{Path(source).stem}.mp4"
        play(path, replace(run, header=header), Picture(0.25, block, None))
        assert loudness(path) == []
        assert words in caplog.text
