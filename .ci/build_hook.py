"""Build hook: wheels and sdists hold the commit that they were built from."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface[Any]):
    """Adds ``costream/core/commit.txt``; an sdist has it already when a wheel is built from it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the file beside the tree, so that the checkout stays as it is."""
        root = Path(self.root)
        sys.path.insert(0, str(root))  # what it imports needs nothing that is not here
        commit = importlib.import_module("costream.core.commit").describe(root)
        sys.path.remove(str(root))
        if version == "editable" or not commit:
            return
        with NamedTemporaryFile("w", suffix=".txt", delete=False) as file:
            file.write(commit + "\n")
        self._file = Path(file.name)
        build_data["force_include"][str(self._file)] = "costream/core/commit.txt"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary file."""
        if hasattr(self, "_file"):
            self._file.unlink(missing_ok=True)
