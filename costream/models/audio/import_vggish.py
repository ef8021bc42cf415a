"""Importer of VGGish (torchvggish) and its PCA file: the frontend of the audio networks.

The PCA may be in the checkpoint itself (``pproc.*``), in its companion file, or in the .npz of the
original.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from costream.core.errors import ModelError
from costream.weights_io.foreign import ForeignCheckpoint
from costream.weights_io.import_settings import ImportSettings
from costream.weights_io.tensor_rules import ImportedFrontend, TensorRule, apply, linear, shape_of

KEYS = ("embedding",)
FRAME_RATE_HZ = 100
_MOST_FRAMES = 96  # of a window
_CONVOLUTIONS = (0, 3, 6, 8, 11, 13)
_POST = "pproc."
_VECTORS, _MEANS = "pca_eigen_vectors", "pca_means"
_PLACES = 24  # positions in the last feature maps


def detect(tensors: Mapping[str, object]) -> bool:
    """Return whether the names are those of VGGish, of its PCA, or of both."""
    names = {name.removeprefix(_POST) for name in tensors}
    return _VECTORS in names or {"features.0.weight", "embeddings.0.weight"} <= names


def read_frontend(
    parts: Sequence[ForeignCheckpoint], settings: ImportSettings, rate_hz: float
) -> ImportedFrontend:
    """Return the frontend of these files for a network with ``rate_hz`` steps per second.

    Raises ModelError when they do not form one VGGish, and when a step is not a whole number of
    its frames of 10 ms.
    """
    tensors: dict[str, Tensor] = {}
    for part in parts:
        for name, value in part.tensors.items():
            name = name.removeprefix(_POST)
            if name in tensors:
                raise ModelError(f"tensor given twice: {name}")
            tensors[name] = value
    output = settings.get("embedding") or ("relu-pca" if _VECTORS in tensors else "relu")
    hop = FRAME_RATE_HZ / rate_hz
    if hop != int(hop) or hop > _MOST_FRAMES:
        raise ModelError(
            f"rate_hz={rate_hz:g}: VGGish has {FRAME_RATE_HZ} frames per second, and a step needs a"
            f" whole number of them, at most {_MOST_FRAMES}",
            hint="CoTrans has 4 steps per second",
        )
    if output.endswith("pca") and _VECTORS not in tensors:
        raise ModelError(f"embedding={output} needs the PCA", hint="also give its file")
    return _frontend(tensors, output, int(hop))


def _frontend(tensors: dict[str, Tensor], output: str, hop_frames: int) -> ImportedFrontend:
    rules: list[TensorRule] = []
    widths, channels = [], 1
    for k in _CONVOLUTIONS:
        width = shape_of(tensors, f"features.{k}.weight", 4)[0]
        name = f"features.{k}"
        rules.append(TensorRule(f"{name}.weight", (f"{name}.weight",), (width, channels, 3, 3)))
        rules.append(TensorRule(f"{name}.bias", (f"{name}.bias",), (width,)))
        widths.append(width)
        channels = width
    hidden = shape_of(tensors, "embeddings.0.weight", 2)[0]
    width = shape_of(tensors, "embeddings.4.weight", 2)[0]
    rules += linear("embeddings.0", "embeddings.0", hidden, _PLACES * channels)
    rules += linear("embeddings.2", "embeddings.2", hidden, hidden)
    unused = [_VECTORS, _MEANS]
    if output == "penultimate":
        unused += ["embeddings.4.weight", "embeddings.4.bias"]
    else:
        rules += linear("embeddings.4", "embeddings.4", width, hidden)
    if output.endswith("pca"):
        rules.append(TensorRule("pca.vectors", (_VECTORS,), (width, width)))
        if _MEANS in tensors:
            tensors[_MEANS] = tensors[_MEANS].flatten()  # a column in torchvggish
        rules.append(TensorRule("pca.means", (_MEANS,), (width,)))
    arguments = {
        "output": output,
        "hop_frames": hop_frames,
        "widths": widths,
        "hidden": hidden,
        "width": width,
    }
    token_width = hidden if output == "penultimate" else width
    renamed = apply(rules, tensors, unused)
    return ImportedFrontend("vggish", arguments, renamed, token_width, "VGGish of torchvggish")
