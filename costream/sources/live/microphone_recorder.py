"""Microphone recorder thread that reopens the device when it is lost."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from queue import Empty, SimpleQueue

from costream.core.errors import SourceError
from costream.core.records import AudioFormat
from costream.sources.live.device_recording import AudioChunk, DeviceLoss, DeviceRecording
from costream.sources.live.devices import (
    WHERE,
    AbsentDeviceError,
    choose_device,
    input_devices,
    rescan_devices,
)

log = logging.getLogger("costream")
BACKLOG_S = 4.0  # maximum sound in the queue; older sound is dropped
STALL_S = 2.0  # a device without data for this long is reopened
FIRST_S = 4.0  # an idle PulseAudio source takes 2 s to start
PAUSES_S = (0.0, 0.5, 1.0, 2.0, 4.0)  # before each attempt to reopen
JOIN_S = 1.0  # maximum wait for a sound server that hangs


class MicrophoneRecorder:
    """Records until ``stop``, reopening the device as needed.

    ``opened`` receives None once the device is open or waited for, or the error of the first
    attempt. ``queue`` receives the chunks, of which the oldest are dropped if they are not
    consumed, and each loss of the device. After ``stop`` both receive None. ``lost`` is the reason
    while the recorder waits for a device, ``given_up`` is True after the last retry, and
    ``reconnects`` is the number of times the device came back. The device is opened, watched and
    closed by a thread, because a sound server that hangs blocks its callers for half a minute.
    """

    def __init__(
        self, wanted: str, sound: AudioFormat, channel: int | None, *, waits: bool, retries: int
    ) -> None:
        """``wanted`` as in ``choose_device``; ``channel`` from 1; None: all.

        ``waits``: also wait for a device that is missing at the start. ``retries``: attempts to
        reopen it before giving up; -1: no limit.
        """
        self.queue: SimpleQueue[AudioChunk | DeviceLoss | None] = SimpleQueue()
        self.opened: SimpleQueue[SourceError | None] = SimpleQueue()
        self.lost = ""
        self.given_up = False
        self.reconnects = 0
        self._waits, self._retries, self._heard = waits, retries, False
        self._wanted, self._sound, self._channel = wanted, sound, channel
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=WHERE, daemon=True)

    def start(self) -> None:
        """Start opening the device."""
        self._thread.start()

    def stop(self) -> None:
        """Stop soon. Safe in a signal handler: SimpleQueue.put is reentrant."""
        self._stopped = True
        for queue in (self._wakes, self.opened, self.queue):
            queue.put(None)

    def join(self) -> None:
        """Wait until the device is closed, after ``stop``."""
        if self._thread.is_alive():
            self._thread.join(JOIN_S)

    def _run(self) -> None:
        try:
            recording = self._open(0)
        except SourceError as error:
            if not (self._waits and isinstance(error, AbsentDeviceError)):
                self.opened.put(error)
                return
            recording = None
            self.lost = str(error).removeprefix(f"{WHERE}: ").partition("; ")[0]
        self.opened.put(None)
        self._record(recording)

    def _record(self, recording: DeviceRecording | None) -> None:
        """Record until ``stop`` or until no retries are left; None: the device is missing."""
        attempts = 0
        for number in itertools.count(1):
            if recording is not None:
                self.lost = self._watch(recording)
                recording.close()
                attempts = 0 if recording.lively else attempts
            if attempts == 0 and not self._stopped:
                self.queue.put(DeviceLoss(f"{self.lost}; waiting for it"))
            if attempts == self._retries:
                self.given_up = True
                self.queue.put(DeviceLoss(f"{self.lost}; gave up", final=True))
                return
            self._pause(PAUSES_S[min(attempts, len(PAUSES_S) - 1)])
            if self._stopped:
                return
            attempts += 1
            recording = self._open_again(number)

    def _open(self, number: int) -> DeviceRecording:
        device = choose_device(input_devices(), self._wanted)
        recording = DeviceRecording(
            number, device, self._sound, self._channel, self._deliver, self._wake
        )
        if self._wanted:
            self._wanted = device.name  # its index may differ next time
        return recording

    def _open_again(self, number: int) -> DeviceRecording | None:
        try:
            rescan_devices()
            return self._open(number)
        except SourceError as error:
            log.debug("%s", error)
            return None

    def _watch(self, recording: DeviceRecording) -> str:
        """Wait until the recording is over or stalls, and return the reason; "" after ``stop``."""
        while not self._stopped:
            if recording.over:
                return "the device is gone"
            patience_s = STALL_S if recording.lively else FIRST_S
            left_s = recording.arrived_s + patience_s - time.monotonic()
            if left_s <= 0:
                return "no sound received"
            self._wait(left_s)
        return ""

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._stopped and (left_s := until - time.monotonic()) > 0:
            self._wait(left_s)

    def _wait(self, seconds: float) -> None:
        with contextlib.suppress(Empty):
            self._wakes.get(timeout=seconds)

    def _wake(self) -> None:
        self._wakes.put(None)

    def _deliver(self, chunk: AudioChunk) -> None:
        if self.lost:
            self.lost = ""
            self.reconnects += self._heard
        self._heard = True
        if self.queue.qsize() * self._sound.block >= BACKLOG_S * self._sound.rate_hz:
            with contextlib.suppress(Empty):
                oldest = self.queue.get_nowait()
                if isinstance(oldest, DeviceLoss):
                    self.queue.put(oldest)
        self.queue.put(chunk)
