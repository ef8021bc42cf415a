"""Base of the sources that decode one stream of a media file."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Generic, TypeVar

from av.container import InputContainer

from costream.core.clock import format_time
from costream.core.errors import SourceError
from costream.sources.base import before_start
from costream.sources.file import FileSource
from costream.sources.media.decode_errors import DecodeErrors
from costream.sources.media.packet_decoder import StreamDecoder
from costream.sources.media.remote import DOWNLOAD, is_remote
from costream.sources.media.unreadable import not_media

DecoderT = TypeVar("DecoderT", bound="StreamDecoder[Any]")


class MediaSource(FileSource, Generic[DecoderT]):
    """Source with a container and a decoder, which is replaced when a seek fails."""

    _container: InputContainer | None = None
    _decoder: DecoderT | None = None

    def stop(self) -> None:
        """End ``items`` soon; safe in a signal handler."""
        super().stop()
        if self._decoder is not None:
            self._decoder.stop()

    def close(self) -> None:
        """Close the file. Items already yielded stay usable."""
        # PyAV does not check for a closed container: no reader may remain.
        if self._decoder is not None:
            self._decoder.close()
            self._decoder = None
        self._forget()
        if self._container is not None:
            self._container.close()
            self._container = None

    @abstractmethod
    def _forget(self) -> None:
        """Forget decoded frames and references to the container."""

    def _check_start(self, duration_s: float | None) -> None:
        """Raise SourceError if the requested start is after the end."""
        if duration_s is not None and self._options.start_s > duration_s:
            raise SourceError(
                f"the start ({format_time(self._options.start_s)}) is after the end of the"
                f" recording ({format_time(duration_s)})",
                where=self._where,
            )

    def _check_end(self, begin_s: float) -> None:
        """Raise SourceError if the requested end is before the beginning."""
        if message := before_start(self._options, begin_s):
            raise SourceError(message, where=self._where)

    def _replace_decoder(self) -> DecodeErrors:
        """Close the decoder; return the counter of the next one, which finds the errors again."""
        if self._decoder is not None:
            self._decoder.close()
        self._damage = DecodeErrors()
        return self._damage

    def _begin(self, decoder: DecoderT) -> None:
        self._decoder = decoder
        if self._stopped:
            decoder.stop()

    def _nothing(self, stopped: str, other: str) -> SourceError:
        """Return the error for an input of which nothing could be decoded."""
        if self._stopped:
            return SourceError(stopped, where=self._where)
        if self._head[4:8] == b"ftyp":  # a short MP4 opens, but its data have been read past
            return not_media(self._uri, False, self._head, None)
        hint = None if self._decoder is None else self._decoder.fatal
        if is_remote(self._uri):
            hint = DOWNLOAD
        return SourceError(other, where=self._where, hint=hint)
