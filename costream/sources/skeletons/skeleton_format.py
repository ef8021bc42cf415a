"""Formats of skeleton recordings: each is a file of this folder, found by its decorator.

``@skeleton_format("bvh", sniff=is_bvh)`` above a function adds a format: the function takes a
SkeletonInput that ``sniff`` has recognised and returns what it reads.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeAlias

from costream.core.layouts import Layout, find_layout
from costream.core.registry import Entry, Registry
from costream.sources.base import SourceOptions
from costream.sources.features.feature_arrays import has_arrays
from costream.sources.file import read_all
from costream.sources.skeletons.columns import Columns, parse_columns
from costream.sources.skeletons.skeleton_recording import SkeletonRecording
from costream.sources.skeletons.take import Take
from costream.sources.skeletons.text_lines import Lines, first_line, is_text


class SkeletonInput:
    """A file, pipe or folder that may hold a skeleton recording, and the options to read it with.

    ``file`` is opened, at its beginning, before a format reads it; None for a folder.
    """

    def __init__(
        self,
        head: bytes,
        path: str | None,
        options: SourceOptions,
        *,
        name: str | None = None,
        where: str = "",
        file: Any = None,
    ) -> None:
        """``head``: first bytes of the file or pipe, none of a folder. ``path``: None for a pipe.

        ``name``: NAME of FILE#NAME. ``where``: the input, for messages.
        """
        self.head, self.path, self.options = head, path, options
        self.name, self.where, self.file = name, where, file

    @cached_property
    def is_folder(self) -> bool:
        """Whether this is a folder."""
        return self.path is not None and os.path.isdir(self.path)

    @cached_property
    def holds_arrays(self) -> bool:
        """Whether this is a .npy, .npz or pickle file."""
        return has_arrays(self.head, self.path)

    @cached_property
    def is_text(self) -> bool:
        """Whether the first bytes are UTF-8 text."""
        return is_text(self.head)

    @cached_property
    def first_line(self) -> str:
        """The first line that is neither empty nor a comment."""
        return first_line(self.head)

    def has_suffix(self, *suffixes: str) -> bool:
        """Return whether the name of the file ends in one of these; False for a pipe."""
        return (self.path or "").lower().endswith(suffixes)

    @cached_property
    def layout(self) -> Layout | None:
        """The joint layout that the options name."""
        return find_layout(self.options.layout) if self.options.layout else None

    @cached_property
    def columns(self) -> Columns | None:
        """The columns that the options name."""
        return parse_columns(self.options.columns) if self.options.columns else None

    @property
    def rate_hz(self) -> float | None:
        """Frames per second that the options give, for recordings without times."""
        return self.options.frame_rate_hz

    def lines(self) -> Lines:
        """Return the lines of the text."""
        return Lines(self.file)

    def seekable(self) -> Any:
        """Return the file; a pipe is read to its end first."""
        return io.BytesIO(read_all(self.file)) if self.path is None else self.file


Reader: TypeAlias = Callable[[SkeletonInput], Take | SkeletonRecording]

# Keywords of ``@skeleton_format``:
# sniff: returns whether a SkeletonInput is of this format
# order: place in which the formats are tried; those without one come first
# folder: the format is of folders, not of files and pipes
# names: returns NAME of each of several recordings in a file (FILE#NAME), given a SkeletonInput
FORMATS = Registry[Reader]("costream.sources.skeletons", "skeleton_format")
skeleton_format = FORMATS.register


def find_format(source: SkeletonInput) -> Entry[Reader] | None:
    """Return the first format that recognises an input."""
    entries = sorted(FORMATS.entries().values(), key=lambda entry: entry.info.get("order", 0))
    for name in (entry.name for entry in entries):
        entry = FORMATS.get(name)
        if entry.info.get("folder", False) == source.is_folder and entry.info["sniff"](source):
            return entry
    return None
