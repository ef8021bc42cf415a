"""Folding: steps use weights multiplied with the scales of a norm, or with fixed landmarks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from torch import Tensor, nn


class Folded:
    """Products of a module's parameters that its steps use in its place; no gradients.

    ``sources``: the parameters and buffers they are computed from.
    """

    def __init__(self, sources: Iterable[Tensor]) -> None:
        self._sources = [t for t in sources if not t.is_inference()]
        self._versions = self._version()

    def is_current(self) -> bool:
        """Return whether the sources are unchanged; changes through ``.data`` are not noticed."""
        return self._version() == self._versions

    def _version(self) -> int:
        return sum([t._version for t in self._sources])


T = TypeVar("T", bound=Folded)
M = TypeVar("M", bound="Foldable[Any]")


class Foldable(nn.Module, ABC, Generic[T]):
    """A module that is folded when a step needs it, and again when its parameters have changed."""

    _folded: T | None = None

    @abstractmethod
    def fold(self) -> T:
        """Return the folded module in evaluation mode, with the current parameters."""

    def folded(self) -> T:
        """Return the result of ``fold``, cached."""
        # Checking all parameters of a network takes 0.1 ms, so not every step of one does it.
        if self._folded is None or not self._folded.is_current():
            self._folded = self.fold()
        return self._folded

    def train(self: M, mode: bool = True) -> M:
        """Set training or evaluation mode, as ``torch.nn.Module.train`` does."""
        self._folded = None
        return super().train(mode)

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        self._folded = None  # device or type change
        return super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._folded = None  # parameters may be replaced
        super()._load_from_state_dict(*args, **kwargs)
