"""Duration from the header of a WAV file; FFmpeg uses the size of the file instead."""

from __future__ import annotations

# Programs that do not know the length in advance write the largest possible size, or 0.
UNKNOWN_BYTES = 0x7FFF0000


def wav_seconds(path: str) -> float | None:
    """Return the stated duration of a WAV file; None for other files, or if it is not stated.

    The chunks are those of the RIFF specification (Microsoft and IBM, 1991).
    """
    with open(path, "rb") as file:
        riff = file.read(12)
        if riff[:4] != b"RIFF" or riff[8:] != b"WAVE":
            return None
        bytes_a_second = 0
        while len(chunk := file.read(8)) == 8:
            size = int.from_bytes(chunk[4:], "little")
            if chunk[:4] == b"data":
                known = bytes_a_second > 0 and 0 < size < UNKNOWN_BYTES
                return size / bytes_a_second if known else None
            if chunk[:4] == b"fmt ":
                bytes_a_second = int.from_bytes(file.read(16)[8:12], "little")
                file.seek(size - 16, 1)
            else:
                file.seek(size, 1)
            file.seek(size % 2, 1)  # chunks begin at even offsets
    return None
