"""Layers of torch that mix frames of clips [B, C, T, ...], or move time to another dimension."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from costream.nn.parts import Stateless

_RANKS = range(3, 7)  # numbers of dimensions of clips
_TIME = 2


class Ranked(Stateless):
    """A layer that treats every frame alone in clips of some numbers of dimensions.

    It raises ValueError for others.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer of a clip [B, C, T, ...]."""
        if _mixes(self.function, x.dim()):
            raise _refusal(self.function, f" in clips of {x.dim()} dimensions")
        return super().forward(x)


def stateless(module: Callable[..., Tensor]) -> Stateless:
    """Return a module or a function that treats every frame alone as a part.

    Raises ValueError for a layer of torch that never does, as it is set.
    """
    mixing = [_mixes(module, rank) for rank in _RANKS]
    if all(mixing):
        raise _refusal(module)
    return Ranked(module) if any(mixing) else Stateless(module)


def _refusal(module: Any, where: str = "") -> ValueError:
    name = type(module).__name__
    hint = ": use convert, or an Encoder" if isinstance(module, _ATTENTION) else ""
    return ValueError(f"{name} does not treat every frame alone{where}{hint}")


def _mixes(module: Any, rank: int) -> bool:
    """Return whether this is a layer of torch that mixes frames of clips with ``rank`` dimensions.

    Subclasses that override ``forward`` are not among them.
    """
    for kind, rule in _RULES.items():
        if isinstance(module, kind) and type(module).forward is kind.forward:
            return rule(module, rank)
    return False


# Whether layers mix frames, as they are set.


def _always(layer: Any, rank: int) -> bool:
    return True


def _of_time(value: Any) -> Any:
    """Return the first of the numbers of a layer, one for each dimension from time on."""
    return value[0] if isinstance(value, tuple | list) else value


def _adaptive(layer: Any, rank: int) -> bool:
    return _of_time(layer.output_size) is not None


def _pool(layer: Any, rank: int) -> bool:
    stride = layer.kernel_size if layer.stride is None else layer.stride
    return (_of_time(layer.kernel_size), _of_time(stride)) != (1, 1)


def _pad(layer: Any, rank: int) -> bool:
    return any(layer.padding[-2:])


def _constant_pad(layer: Any, rank: int) -> bool:
    first = 2 * (rank - 1 - _TIME)  # sides of the last dimension come first
    return any(layer.padding[first : first + 2])


def _scale(layer: Any, rank: int) -> bool:
    scale = layer.scale_factor
    return layer.size is not None or not isinstance(scale, tuple) or scale[0] != 1


def _norm(layer: Any, rank: int) -> bool:
    return rank - len(layer.normalized_shape) <= _TIME


def _dimension(layer: Any, rank: int) -> bool:
    dim = layer.dim
    if dim is None:  # as torch chooses it
        dim = 0 if rank == 3 else 1
    return dim in (0, _TIME, -rank, _TIME - rank)


def _flatten(layer: Any, rank: int) -> bool:
    start, end = (d + rank if d < 0 else d for d in (layer.start_dim, layer.end_dim))
    return bool(start <= _TIME and start < end)


def _unflatten(layer: Any, rank: int) -> bool:
    return bool((layer.dim + rank if layer.dim < 0 else layer.dim) <= _TIME)


_ATTENTION = (
    *(nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer),
    *(nn.TransformerEncoder, nn.TransformerDecoder, nn.Transformer),
)
_OVER_TIME = (
    *(nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    *(nn.ConstantPad1d, nn.ReplicationPad1d, nn.ReflectionPad1d, nn.CircularPad1d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d, nn.LPPool1d),
    *(nn.FractionalMaxPool2d, nn.FractionalMaxPool3d),
    *(nn.Unfold, nn.Fold, nn.PixelShuffle, nn.PixelUnshuffle),
    *_ATTENTION,
)
_PADS = (
    *(nn.ReplicationPad2d, nn.ReflectionPad2d, nn.CircularPad2d),
    *(nn.ReplicationPad3d, nn.ReflectionPad3d, nn.CircularPad3d),
)
_ADAPTIVE = (
    *(nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *(nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
)
_RULES: dict[Any, Callable[[Any, int], bool]] = {
    **dict.fromkeys(_OVER_TIME, _always),
    **dict.fromkeys(_ADAPTIVE, _adaptive),
    **dict.fromkeys((nn.LPPool2d, nn.LPPool3d), _pool),
    **dict.fromkeys(_PADS, _pad),
    **dict.fromkeys((nn.ConstantPad2d, nn.ConstantPad3d), _constant_pad),
    **dict.fromkeys((nn.Softmax, nn.LogSoftmax, nn.Softmin, nn.GLU), _dimension),
    nn.Upsample: _scale,
    nn.RMSNorm: _norm,
    nn.Flatten: _flatten,
    nn.Unflatten: _unflatten,
}
