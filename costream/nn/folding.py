"""Networks that step with folded parameters: batch norms within the layers before them."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

from costream.nn.timing import ContinualModule


class _Folded(Protocol):
    """A network in evaluation."""

    def is_current(self) -> bool:
        """Say whether the parameters are still those that it was made of."""
        ...


T = TypeVar("T", bound=_Folded)
M = TypeVar("M", bound="Foldable[Any]")


class Foldable(ContinualModule, Generic[T]):
    """A module that is folded when a step wants it, and anew when its parameters have changed."""

    _folded: T | None = None

    def fold(self) -> T:
        """Give the module in evaluation, with the parameters of now, as steps take it."""
        raise NotImplementedError

    def folded(self) -> T:
        """Give what ``fold`` gives, made once."""
        # To look through all parameters for a change takes 0.1 ms, so not every step does.
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
