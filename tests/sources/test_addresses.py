"""What feeds are called and how they are connected to."""

from __future__ import annotations

import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costream.core.records import AudioFormat
from costream.sources.base import ConnectionOptions, SourceOptions
from costream.sources.live.address import (
    LONGEST_NAME,
    address_of,
    display_feed,
    feed_name,
    host_of,
    is_camera,
)
from costream.sources.live.feed_source import FeedSource
from costream.sources.realtime import RealtimeSource
from costream.sources.uris import expand, name_of, open_source, sniff

SOUND = AudioFormat(16000, 1600)


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("rtsp://cam1:554/live", "cam1_554_live"),
        ("rtsp://user:p@ss@cam1:554/live", "cam1_554_live"),
        ("rtsp://10.0.0.5/Streaming/Channels/101", "10.0.0.5_Streaming_Channels_101"),
        ("rtsp://cam/x?channel=1&subtype=0", "cam_x_channel_1_subtype_0"),
        ("http://cam/x.m3u8?token=secret&n=2", "http_cam_x.m3u8_n_2"),
        ("rtsp://[::1]:8554/a", "1__8554_a"),
        ("rtsp://u:a'b <c>@cam/x?jwt=a'b#token=c", "cam_x"),
        ("rtmp://live.host/app/stream-key", "rtmp_live.host_app"),
        ("rtsp://u:[odd password@cam/a", "cam_a"),
        ("udp://@239.0.0.1:1234", "udp_239.0.0.1_1234"),
        ("0", "camera_0"),
        ("camera:1", "camera_1"),
        ("camera:USB Cam/2", "camera_USB_Cam_2"),
        ("/dev/video3", "video3"),
    ],
)
def test_names(uri: str, name: str) -> None:
    assert name_of(uri) == feed_name(uri) == name


def test_a_long_name_is_cut_and_still_its_own() -> None:
    first, second = (feed_name(f"http://h/{'x' * 300}?n={k}") for k in (1, 2))
    assert first != second
    assert len(first) <= LONGEST_NAME + 9
    long = "x" * 300
    assert feed_name(f"rtsp://me:secret@cam/{long}") == feed_name(f"rtsp://cam/{long}")


@given(st.text(min_size=1), st.text(min_size=1))
def test_names_are_safe_and_without_credentials(path: str, password: str) -> None:
    secret = f"Z{password}Z"
    uri = f"rtsp://me:{secret}@cam/{path}"
    name = feed_name(uri)
    assert re.fullmatch(r"[\w.-]+", name)
    assert not name.startswith((".", "_"))
    if "@" not in path and not set(password) & set("?#"):  # may begin a query
        assert name == feed_name(f"rtsp://cam/{path}")
        assert secret not in f"{name} {host_of(uri)} {display_feed(uri)}"


def test_hosts() -> None:
    assert host_of("rtsp://u:p@ss@cam:554/x") == host_of("http://cam?n=1") == "cam"
    assert host_of("rtsp://[fe80::1]:554/x") == "fe80::1"
    assert host_of("/dev/video0") == host_of("foo://") == ""


def test_options_of_ffmpeg() -> None:
    how = ConnectionOptions(timeout_s=4.0, transport="udp")
    rtsp = address_of("rtsp://cam/1", how)
    assert rtsp.options["rtsp_transport"] == "udp"
    assert rtsp.options["timeout"] == "4000000"
    assert (rtsp.open_s, rtsp.read_s) == (4.0, 2.0)
    assert address_of("rtsp://cam/1", ConnectionOptions()).options["rtsp_transport"] == "tcp"
    assert address_of("http://cam/1", how).read_s == 4.0
    # FFmpeg takes this for the wish to be a server.
    assert "timeout" not in address_of("rtmp://host/live", how).options


@pytest.mark.parametrize(
    ("platform", "uri", "file", "form"),
    [
        ("linux", "0", "/dev/video0", "v4l2"),
        ("linux", "camera:2", "/dev/video2", "v4l2"),
        ("linux", "/dev/v4l/by-id/usb-cam", "/dev/v4l/by-id/usb-cam", "v4l2"),
        ("darwin", "camera:0", "0", "avfoundation"),
        ("darwin", "camera:FaceTime HD", "FaceTime HD", "avfoundation"),
        ("win32", "camera:USB Camera", "video=USB Camera", "dshow"),
    ],
)
def test_cameras(
    monkeypatch: pytest.MonkeyPatch, platform: str, uri: str, file: str, form: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert is_camera(uri)
    address = address_of(uri, ConnectionOptions())
    assert (address.file, address.format) == (file, form)


@pytest.mark.long
def test_the_registry_gives_feeds_to_those_who_connect(tmp_path, media) -> None:
    live = SourceOptions(connecting=ConnectionOptions())
    for uri in ("rtsp://u:p@cam/1", "https://host/x.m3u8", "camera:0", "/dev/video0"):
        assert expand(uri, connecting=True) == [uri]
        assert sniff(uri, live) == "video"
        assert isinstance(open_source(uri, live), FeedSource)
    assert (
        sniff("rtsp://cam/1", SourceOptions(connecting=ConnectionOptions(), sound=SOUND)) == "audio"
    )
    file = str(media / "plain.mp4")
    assert not isinstance(open_source(file, live), RealtimeSource)
    played = SourceOptions(connecting=ConnectionOptions(speed=1.0))
    assert isinstance(open_source(file, played), RealtimeSource)
