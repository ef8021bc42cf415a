"""The microphone, a virtual one: what it hears, and what becomes of it when it fails."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costream.core.errors import SourceError, UsageError
from costream.sources.live.devices import InputDevice, choose_device
from costream.sources.live.microphone import MicrophoneSource
from kit.program import environment, python
from kit.virtual_microphone import RATE, VirtualMicrophone, needs_microphone, noise, tone

LISTEN = """
    import json, logging, signal, sys, threading, time
    import numpy as np
    from costream.core.errors import CostreamError
    from costream.core.records import Fault, Gap
    from costream.sources.live import microphone_recorder as recorder
    from costream.core.records import AudioFormat
    from costream.sources.base import ConnectionOptions, LiveSource, SourceOptions
    from costream.sources.live.devices import silence_portaudio
    from costream.sources.live.microphone import MicrophoneSource

    silence = silence_portaudio(["mic"])  # as the commands do
    silence.__enter__()

    def say(**what):
        print(json.dumps(what), flush=True)

    uri, rate, pause_s, path, options = sys.argv[1], *map(json.loads, sys.argv[2:])
    logging.basicConfig(format="%(message)s")
    if "connecting" in options:
        options["connecting"] = ConnectionOptions(**options["connecting"])
    source = MicrophoneSource(uri, SourceOptions(sound=AudioFormat(rate, rate // 4), **options))
    assert isinstance(source, LiveSource)
    signal.signal(signal.SIGINT, lambda *_: source.stop())
    states = []

    def watch():
        while True:
            now = source.connection
            if [now.state, now.message, now.reconnects] not in states[-1:]:
                states.append([now.state, now.message, now.reconnects])
            time.sleep(0.005)

    threading.Thread(target=watch, daemon=True).start()
    # That thread gets signals, as if they came just before a wait of this one.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    blocks = []
    if pause_s:
        recorder.BACKLOG_S = 0.5
    say(opening=True)
    try:
        say(live=source.open().live)
        for item in source.items():
            if isinstance(item, Gap):
                say(gap=[item.start_s, item.end_s, item.reason])
                continue
            if isinstance(item, Fault):
                say(fault=[item.time_s, item.message, item.fatal])
                continue
            say(i=item.i, time_s=item.time_s, pts=item.pts, arrived_s=item.arrived_s)
            blocks.append(item.samples)
            if pause_s and item.i == 3:
                time.sleep(pause_s)
    except CostreamError as error:
        say(error=str(error))
    began = time.monotonic()
    source.close()
    if path:
        np.save(path, np.concatenate(blocks))
    say(close_s=time.monotonic() - began, dropped=source.dropped, drift=source.drift_ppm,
        threads=threading.active_count() - 1, states=states)
"""

BLOCK_S = 0.25
# A block comes up to an eighth of a second late from a sound server, and machines are busy.
LATE_S = 0.4


class Listener:
    """A process that listens to the microphone and says what it gets."""

    def __init__(
        self,
        microphone: VirtualMicrophone,
        uri: str = "mic",
        *,
        rate: int = 16000,
        pause_s: float = 0.0,
        path: Path | None = None,
        **options: Any,
    ) -> None:
        arguments = (rate, pause_s, None if path is None else str(path), options)
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(LISTEN), uri, *map(json.dumps, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(microphone.environment),
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.faults: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()
        assert self.said() == {"opening": True}

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def said(self, timeout: float = 30.0) -> dict[str, Any]:
        """Wait for the next thing it says; {} at the end."""
        line = self._lines.get(timeout=timeout)
        return json.loads(line) if line else {}

    def blocks(self, count: int) -> list[dict[str, Any]]:
        """Wait for so many blocks, with no gap between them."""
        found = [self.said() for _ in range(count)]
        assert all("time_s" in block for block in found), found
        return found

    def gap(self) -> tuple[float, float, str]:
        """Wait for the next gap, past blocks, and a fault if that was a loss."""
        while "gap" not in (said := self.said()):
            assert "time_s" in said or "fault" in said, said
            if "fault" in said:
                self.faults.append(said["fault"][1])
        start_s, end_s, reason = said["gap"]
        return start_s, end_s, reason

    def stop(self) -> dict[str, Any]:
        """Interrupt it and return its last words."""
        self.process.send_signal(signal.SIGINT)
        return self.rest()[-1]

    def rest(self) -> list[dict[str, Any]]:
        """Return what it says until it ends, by itself."""
        found = list(iter(self.said, {}))
        assert self.process.wait(90) == 0
        return found

    def complaints(self) -> str:
        """Return what it wrote to stderr, after its end."""
        assert self.process.stderr is not None
        return self.process.stderr.read()


@pytest.fixture(scope="module")
def microphone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VirtualMicrophone]:
    """One that stays plugged in."""
    with VirtualMicrophone(tmp_path_factory.mktemp("server")) as virtual:
        yield virtual


@pytest.fixture
def poor_microphone(tmp_path: Path) -> Iterator[VirtualMicrophone]:
    """One of which anything may become."""
    with VirtualMicrophone(tmp_path) as virtual:
        yield virtual


def delay_s(block: dict[str, Any]) -> float:
    return float(block["arrived_s"] - block["time_s"])


@needs_microphone
def test_captured_equals_played(microphone: VirtualMicrophone, tmp_path: Path) -> None:
    played = noise(20)
    microphone.play(played)
    listener = Listener(microphone, rate=RATE, path=tmp_path / "x.npy", end_s=1.9)
    assert listener.said() == {"live": True}
    *blocks, last = listener.rest()
    assert [block["i"] for block in blocks] == list(range(8))
    assert [block["time_s"] for block in blocks] == [BLOCK_S * (k + 1) for k in range(8)]
    assert [block["pts"] for block in blocks] == [RATE // 4 * k for k in range(8)]
    assert last["threads"] == 1
    assert last["dropped"] == 0
    captured = np.load(tmp_path / "x.npy")
    heard = captured[: round(1.9 * RATE)]
    assert not captured[len(heard) :].any()
    whole = np.round(heard * 32768).astype("<i2")
    at = played.tobytes().find(whole[:100].tobytes()) // 2
    assert at >= 0
    assert np.abs(heard * 32768 - played[at : at + len(heard)]).max() < 1.5
    assert listener.complaints() == ""


@needs_microphone
@pytest.mark.parametrize("rate", [16000, 400000])
def test_tone_at_the_rate_of_the_model(
    microphone: VirtualMicrophone, tmp_path: Path, rate: int
) -> None:
    """The server gives 16 kHz itself; 400 kHz it refuses, so it is resampled here."""
    microphone.play(tone(20))
    listener = Listener(microphone, rate=rate, path=tmp_path / "x.npy", end_s=1.25)
    listener.rest()
    heard = np.load(tmp_path / "x.npy")[rate // 4 :]  # the first filter begins in silence
    assert len(heard) == rate
    time_s = np.arange(len(heard)) / rate
    powers = [
        abs(np.mean(heard * np.exp(-2j * np.pi * hz * time_s))) for hz in (439.5, 440.0, 440.5)
    ]
    assert np.argmax(powers) == 1
    assert 2 * powers[1] == pytest.approx(0.125, rel=0.01)


@needs_microphone
def test_stalled(microphone: VirtualMicrophone) -> None:
    microphone.play(tone(60))
    listener = Listener(microphone)
    listener.said()
    before = listener.blocks(5)
    microphone.stall()
    threading.Event().wait(1.0)
    microphone.resume()
    start_s, end_s, reason = listener.gap()
    assert reason == "no sound received"
    # A block that was begun is left out.
    assert 1.0 - LATE_S < end_s - start_s < 1.0 + BLOCK_S + LATE_S
    after = listener.blocks(5)
    assert after[0]["time_s"] == pytest.approx(end_s + BLOCK_S)
    # Time went on by the clock on the wall.
    usual = min(map(delay_s, before))
    assert min(map(delay_s, after)) == pytest.approx(usual, abs=LATE_S)
    last = listener.stop()
    assert last["threads"] == 1
    assert "sound is back after" in listener.complaints()


@needs_microphone
@pytest.mark.parametrize("fault", ["unplugged", "server killed"])
def test_lost_and_back(poor_microphone: VirtualMicrophone, fault: str) -> None:
    microphone = poor_microphone
    microphone.play(tone(60))
    listener = Listener(microphone)
    listener.said()
    before = listener.blocks(5)
    if fault == "unplugged":
        microphone.unplug()
    else:
        microphone.kill_server()
    threading.Event().wait(0.7)
    if fault == "server killed":
        microphone.start_server()
    microphone.plug()
    microphone.play(tone(60))
    start_s, end_s, reason = listener.gap()
    assert reason == "the microphone was lost"
    assert end_s - start_s > 0.7
    after = listener.blocks(5)
    usual = min(map(delay_s, before))
    assert min(map(delay_s, after)) == pytest.approx(usual, abs=LATE_S)
    assert after[0]["i"] > before[-1]["i"]
    last = listener.stop()
    assert last["threads"] == 1
    assert last["states"][:4] == [
        ["connecting", "", 0],
        ["live", "", 0],
        ["waiting", "the device is gone", 0],
        ["live", "", 1],
    ]
    assert listener.faults == ["the device is gone; waiting for it"]
    (back,) = listener.complaints().splitlines()  # PortAudio and ALSA say nothing
    assert back.startswith("microphone: sound is back after")


@needs_microphone
def test_not_there_at_the_start(poor_microphone: VirtualMicrophone) -> None:
    """It is waited for in a watch, with a reason; so much for microphones on USB."""
    poor_microphone.unplug()
    listener = Listener(poor_microphone, connecting={})
    assert listener.said() == {"live": True}
    time_s, message, fatal = listener.said()["fault"]
    assert 0 <= time_s < 5
    assert "cannot be opened" in message
    assert not fatal
    *_, fault, _ = Listener(poor_microphone, connecting={"retries": 1}).rest()
    assert fault["fault"][1:] == [message.replace("waiting for it", "gave up"), True]
    poor_microphone.plug()
    poor_microphone.play(tone(60))
    start_s, end_s, reason = listener.gap()
    assert (start_s, reason) == (0.0, message)
    block = listener.blocks(2)[0]
    assert block["time_s"] == pytest.approx(end_s + BLOCK_S)
    poor_microphone.unplug()
    while "fault" not in (said := listener.said()):
        assert "time_s" in said
    assert said["fault"][1] == "the device is gone; waiting for it"
    listener.process.send_signal(signal.SIGINT)
    gap, last = listener.rest()
    assert gap["gap"][1:] == [pytest.approx(said["fault"][0], abs=2.0), "the device is gone"]
    first, *states = last["states"]
    assert first == ["connecting", "", 0]
    # Once the device is open, and before its first sound is cut, it is connecting again.
    waiting, live = [state for state in states if state[0] != "connecting"][:2]
    assert waiting == ["waiting", message.removesuffix("; waiting for it"), 0]
    assert live == ["live", "", 0]


@needs_microphone
def test_model_too_slow(microphone: VirtualMicrophone) -> None:
    microphone.play(tone(60))
    listener = Listener(microphone, pause_s=1.5)
    listener.said()
    before = listener.blocks(4)
    start_s, end_s, reason = listener.gap()
    assert start_s >= before[-1]["time_s"]
    assert "dropped" in reason
    after = listener.blocks(3)
    assert after[0]["time_s"] == pytest.approx(end_s + BLOCK_S)
    assert delay_s(after[0]) == pytest.approx(min(map(delay_s, before)), abs=LATE_S)
    assert listener.stop()["dropped"] == round((end_s - start_s) / BLOCK_S)


@needs_microphone
def test_duration_ends_it_without_sound_too(microphone: VirtualMicrophone) -> None:
    microphone.play(tone(1.0))
    *_, gap, last = Listener(microphone, end_s=1.5).rest()
    start_s, end_s, reason = gap["gap"]
    assert end_s == 1.5
    assert 0 < start_s <= 1.0
    assert reason == "no sound received"
    assert last["dropped"] == 0


@needs_microphone
def test_start(microphone: VirtualMicrophone) -> None:
    microphone.play(tone(20))
    listener = Listener(microphone, start_s=0.6, end_s=1.1)
    *blocks, _ = listener.rest()[1:]
    assert [block["time_s"] for block in blocks] == pytest.approx([0.85, 1.1])


@needs_microphone
def test_stop_while_it_waits(poor_microphone: VirtualMicrophone) -> None:
    """A microphone that is plugged in and gives nothing, then a server that hangs."""
    listener = Listener(poor_microphone)
    assert listener.said() == {"live": True}
    assert listener.stop()["close_s"] < 2
    poor_microphone.hang()
    listener = Listener(poor_microphone)
    threading.Event().wait(0.5)
    listener.process.send_signal(signal.SIGINT)
    assert listener.said() == {"error": "mic: stopped before any sound came"}
    assert listener.said()["close_s"] < 4
    listener.process.kill()  # it waits for the server to let PortAudio go
    listener.process.wait(90)


CONTRACT = """
    import time

    from costream.core.errors import SourceError
    from costream.core.records import AudioFormat
    from costream.sources.base import Source, SourceOptions
    from costream.sources.live.microphone import MicrophoneSource

    def make() -> Source:
        return MicrophoneSource("mic", SourceOptions(sound=AudioFormat(16000, 4000)))

    source = make()
    source.close()
    info = source.open()
    assert (info.kind, info.rate_hz, info.duration_s, info.live) == ("audio", 4.0, None, True)
    assert 0 <= time.time() - info.began_s < 2
    items = source.items()
    assert next(items).samples.shape == (4000,)
    source.close()
    assert list(items) == [] == list(source.items())
    source.close()

    source = make()
    source.open()
    source.stop()
    assert list(source.items()) == []
    source.close()

    source = make()
    source.open()
    seen = 0
    for _ in source.items():
        seen += 1
        source.stop()
    assert seen == 1
    source.close()

    source = make()
    source.stop()
    try:
        source.open()
    except SourceError as error:
        print(error)
    source.close()
"""


@needs_microphone
def test_contract_of_a_source(microphone: VirtualMicrophone) -> None:
    """What test_conformance.py asks of the others, in a process that has this sound server."""
    microphone.play(tone(20))
    done = python("-c", textwrap.dedent(CONTRACT), env=microphone.environment)
    assert done.stderr == ""
    assert done.stdout == "mic: stopped before any sound came\n"


OPEN = """
    import json, sys
    from costream.cli.doctor import microphones
    from costream.core.errors import SourceError
    from costream.core.records import AudioFormat
    from costream.sources.base import SourceOptions
    from costream.sources.live.devices import silence_portaudio
    from costream.sources.live.microphone import MicrophoneSource

    silence = silence_portaudio(["mic"])  # as the commands do
    silence.__enter__()
    for uri, channel in json.loads(sys.argv[1]):
        options = SourceOptions(sound=AudioFormat(16000, 4000), channel=channel)
        source = MicrophoneSource(uri, options)
        try:
            print("opened", source.open().uri)
        except SourceError as error:
            print(error)
        source.close()
    for finding in microphones():
        print(finding.ok, finding.name, finding.detail, finding.hint)
"""


def opened(microphone: VirtualMicrophone, *choices: tuple[str, int | None]) -> list[str]:
    """Return what came of opening each of these, and what the doctor says."""
    done = python("-c", textwrap.dedent(OPEN), json.dumps(choices), env=microphone.environment)
    assert done.returncode == 0
    assert done.stderr == ""  # PortAudio and ALSA say nothing
    return done.stdout.splitlines()


@needs_microphone
def test_choices(microphone: VirtualMicrophone) -> None:
    good = ("mic", "mic:1", "mic:desk_right", "mic:LEFT")
    bad = ("mic:desk", "mic:99", "mic:nobody's")
    said = opened(
        microphone, *((uri, 2) for uri in good), *((uri, None) for uri in bad), ("mic:0", 99)
    )
    assert said[:4] == [f"opened {uri}" for uri in good]
    assert said[4].startswith("microphone: 'desk' is ambiguous: ")
    assert said[5].startswith("microphone: there is no input device '99', only 0 '")
    assert said[6].startswith("microphone: there is no input device \"nobody's\", only 0 '")
    for line in said[4:7]:
        assert "'desk_left', " in line
        assert line.endswith("; give its name or number: mic:NAME|INDEX")
    assert "has no channel 99, only 32" in said[7]
    devices = said[8:]
    assert any("desk_left, ALSA, up to 32 channels, 44100 Hz" in line for line in devices)
    assert all(line.startswith("True mic:") for line in devices)
    assert sum("the default" in line for line in devices) == 1


@needs_microphone
def test_nothing_there(poor_microphone: VirtualMicrophone) -> None:
    poor_microphone.unplug()
    (error, *_) = opened(poor_microphone, ("mic", None))
    assert "cannot be opened" in error
    assert "is it plugged in" in error
    poor_microphone.kill_server()
    error, finding = opened(poor_microphone, ("mic", None))
    assert error.startswith("microphone: there is no input device; plug one in")
    assert finding.startswith("None microphones none plug one in")


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's stderr")
def test_a_program_silences_portaudio_while_it_reads_a_microphone() -> None:
    code = """
        import ctypes
        from costream.sources.live.devices import silence_portaudio
        say = ctypes.CDLL(None).perror
        with silence_portaudio(["a.mp4", "Mic:USB"]):
            say(b"ALSA lib")
        with silence_portaudio(["a.mp4", "rtsp://mic"]):
            say(b"no microphone")
        say(b"the end")
    """
    said = python("-c", textwrap.dedent(code)).stderr.splitlines()
    assert [line.partition(":")[0] for line in said] == ["no microphone", "the end"]


BLOCKED = """
    import sys
    class Blocker:
        def find_spec(self, name, path=None, target=None):
            if name == {module!r}:
                raise {error}
    sys.meta_path.insert(0, Blocker())
    from costream.core.errors import SourceError
    from costream.core.records import AudioFormat
    from costream.sources.base import SourceOptions
    from costream.sources.live.microphone import MicrophoneSource
    source = MicrophoneSource("mic", SourceOptions(sound=AudioFormat(16000, 4000)))
    try:
        source.open()
    except SourceError as error:
        print(error)
    source.close()
"""


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            "ModuleNotFoundError('no', name='sounddevice')",
            "microphone: the package sounddevice is missing; pip install 'costream[mic]'",
        ),
        (
            "OSError('PortAudio library not found')",
            "microphone: the PortAudio library cannot be used (PortAudio library not found); "
            "on Debian and Ubuntu: apt install libportaudio2",
        ),
    ],
)
def test_errors_name_the_package_to_install(error: str, message: str) -> None:
    done = python("-c", textwrap.dedent(BLOCKED).format(module="sounddevice", error=error))
    assert done.stdout.strip() == message


def device(index: int, name: str, *, default: bool = False) -> InputDevice:
    return InputDevice(index, name, "ALSA", 2, 44100, default)


def test_choosing() -> None:
    inner, usb, again = device(0, "Inner"), device(3, "USB mic"), device(7, "USB mic")
    other = device(9, "USB mic 2", default=True)
    devices = [inner, usb, again, other]
    assert choose_device(devices, "") is other
    assert choose_device(devices, "7") is again
    assert choose_device(devices, "inn") is inner
    assert choose_device(devices, "USB mic") is usb  # one device through several interfaces
    with pytest.raises(
        SourceError, match=r"'usb' is ambiguous: 3 'USB mic', 7 'USB mic', 9 'USB mic 2'"
    ):
        choose_device(devices, "usb")
    with pytest.raises(SourceError, match="there is no default input device"):
        choose_device(devices[:2], "")
    with pytest.raises(SourceError, match="there is no input device;"):
        choose_device([], "usb")


def test_only_for_models_that_take_sound() -> None:
    from costream.core.records import AudioFormat
    from costream.sources.base import SourceOptions

    with pytest.raises(UsageError, match="a model that takes sound"):
        MicrophoneSource("mic")
    with pytest.raises(UsageError, match="a microphone has no pictures; leave out the model"):
        MicrophoneSource("mic", SourceOptions(extra_audio=AudioFormat(16000, 4000)))
