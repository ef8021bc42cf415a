"""Modules that step with folded parameters: norms, or landmarks, within the layers before them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from torch import Tensor, nn


class Folded:
    """What steps use in place of a module: products of its parameters. No gradients.

    ``sources``: the parameters and buffers that they are made of.
    """

    def __init__(self, sources: Iterable[Tensor]) -> None:
        self._sources = [t for t in sources if not t.is_inference()]
        self._versions = self._version()

    def is_current(self) -> bool:
        """Whether the sources have not changed since; changes through ``.data`` escape it."""
        return self._version() == self._versions

    def _version(self) -> int:
        return sum([t._version for t in self._sources])


T = TypeVar("T", bound=Folded)
M = TypeVar("M", bound="Foldable[Any]")


class Foldable(nn.Module, ABC, Generic[T]):
    """A module that is folded when a step wants it, and anew when its parameters have changed."""

    _folded: T | None = None

    @abstractmethod
    def fold(self) -> T:
        """Give the module in evaluation, with the parameters of now, as steps take it."""

    def folded(self) -> T:
        """Give what ``fold`` gives, made once."""
        # To look through all parameters of a network takes 0.1 ms, so not every step of one does.
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
