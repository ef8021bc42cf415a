"""Times of ways to compute the same, kept in the user's cache; see ``nn.choices``."""

from __future__ import annotations

import json
from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from costream.core.errors import OutputError
from costream.core.processor import processor
from costream.nn.choices import Times
from costream.weights_io.file import write_whole
from costream.weights_io.store import cache_folder


class KeptTimes(MutableMapping[str, Times]):
    """The times of this processor with these libraries, in a file for all machines of a home.

    It is read once. Times that cannot be written are not kept.
    """

    @cached_property
    def path(self) -> Path:
        """The file."""
        return cache_folder().parent / "products.json"

    @cached_property
    def _machine(self) -> str:
        return f"{processor()}, torch {torch.__version__}, numpy {np.__version__}"

    @cached_property
    def _times(self) -> dict[str, Times]:
        return self._in_file()

    def __getitem__(self, name: str) -> Times:
        return self._times[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*self._times])

    def __len__(self) -> int:
        return len(self._times)

    def __setitem__(self, name: str, times: Times) -> None:
        """Keep times; if another process was first, its times."""
        others = self._in_file()
        if name not in self._times and others.get(name, {}).keys() == times.keys():
            self._times[name] = others[name]
        elif not self._write({**others, name: times}):
            self._times[name] = times

    def __delitem__(self, name: str) -> None:
        del self._times[name]
        self._write({key: times for key, times in self._in_file().items() if key != name})

    def problem(self) -> str:
        """Return that times cannot be kept, and why; '' if they can."""
        return self._write(self._in_file())

    def _in_file(self) -> dict[str, Times]:
        times = _content(self.path).get(self._machine)
        return {k: v for k, v in times.items() if _are_times(v)} if isinstance(times, dict) else {}

    def _write(self, times: dict[str, Times]) -> str:
        """Store all times of this machine; return that this was not possible, and why, or ''."""
        text = json.dumps({**_content(self.path), self._machine: times}, indent=1)
        try:
            write_whole(self.path, [text.encode()])
        except OutputError as error:
            return str(error)
        return ""


def _are_times(value: Any) -> bool:
    """Return whether a value of the file has the times of ways, one at least."""
    times = value.values() if isinstance(value, dict) else ()
    return bool(times) and all(isinstance(us, (int, float)) for us in times)


def _content(path: Path) -> dict[str, Any]:
    """Return the content of a file, empty if there is none or it is damaged."""
    with suppress(OSError, ValueError):
        content = json.loads(path.read_text("utf-8"))
        return content if isinstance(content, dict) else {}
    return {}
