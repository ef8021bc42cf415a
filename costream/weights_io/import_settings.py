"""Import settings: typed ``key=value`` pairs, checked against the contents of the checkpoint."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from costream.core.errors import ModelError, UsageError
from costream.core.label_sets import KNOWN
from costream.weights_io.licences import CLASSES, class_of


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _rate(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError
    return number


def _decay(text: str) -> float:
    number = float(text)
    if not 0 < number <= 1:
        raise ValueError
    return number


def _flag(text: str) -> bool:
    return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[
        text.lower()
    ]


def _one_of(*choices: str) -> tuple[Callable[[str], str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise ValueError
        return text

    return read, f"{', '.join(choices[:-1])} or {choices[-1]}"


def _some_of(*choices: str) -> tuple[Callable[[str], list[str]], str]:
    one, kind = _one_of(*choices)
    return lambda text: [one(part.strip()) for part in text.split(",")], kind


def _weights(text: str) -> list[float]:
    return [_rate(part) for part in text.split(",")]


_COUNT = (_count, "a whole number above 0")
_TEXT = (str, "text")
# key -> (parser, accepted values, meaning)
KEYS: dict[str, tuple[Callable[[str], Any], str, str]] = {
    "num_heads": (*_COUNT, "attention heads of the encoder"),
    "window": (*_COUNT, "window length in tokens (skeleton networks: frames)"),
    "activation": (*_one_of("relu", "gelu"), "of the feed-forward layers (gelu: exact, erf)"),
    "stack": (
        *_one_of("exact", "deepcot"),
        "one window for all blocks (exact) or one per block (deepcot: cheaper, other results)",
    ),
    "attention": (*_one_of("softmax", "soft"), "of DeepCoT (default softmax)"),
    "embedding": (
        *_one_of("relu", "linear", "relu-pca", "linear-pca", "penultimate"),
        "VGGish features that the network uses (default relu; with a PCA file relu-pca)",
    ),
    "norm_first": (_flag, "true or false", "normalise before attention and feed-forward"),
    "decoder_heads": (*_COUNT, "attention heads of the decoder"),
    "input_width": (*_COUNT, "values per feature row"),
    "embed_dim": (*_COUNT, "width of a token"),
    "feedforward": (*_COUNT, "width inside the feed-forward layers"),
    "depth": (*_COUNT, "encoder blocks"),
    "num_positions": (*_COUNT, "rows of the recycling position table"),
    "num_classes": (*_COUNT, "classes, background included"),
    "num_queries": (*_COUNT, "future steps the decoder anticipates"),
    "decoder_depth": (*_COUNT, "decoder blocks"),
    "decoder_feedforward": (*_COUNT, "width inside the decoder's feed-forward layers"),
    "memory_every": (*_COUNT, "rows of which one is remembered (TeSTra, CMeRT)"),
    "memory_samples": (*_COUNT, "remembered rows (CMeRT)"),
    "anticipated": (*_COUNT, "rows after the window that are anticipated (CMeRT)"),
    "context": (*_COUNT, "rows before the window that are decoded with it (CMeRT)"),
    "memory_decay": (_decay, "a number above 0, up to 1", "of what is remembered, for each row"),
    "layout": (*_TEXT, "joint layout of a skeleton network: ntu-25, openpose-18, coco-17, ..."),
    "stream": (
        *_some_of("joint", "bone", "joint_motion", "bone_motion"),
        "input of a skeleton network; for several files: joint,bone,...",
    ),
    "fusion": (_weights, "numbers above 0", "weights of the scores of several files: 2,2,1,1"),
    "padding": (
        *_one_of("same", "none"),
        "padding of a skeleton network; none: stride 1 without padding (the * networks)",
    ),
    "sliding": (
        *_COUNT,
        "recompute a skeleton or 3D network over complete clips every N steps, not step by step",
    ),
    "network": (
        *_one_of("x3d-xs", "x3d-s", "x3d-m"),
        "variant of X3D: the weights look alike, but image sizes and frame rates differ",
    ),
    "pool": (*_COUNT, "features that a 3D network averages (default: as many as a clip has)"),
    "start": (
        *_one_of("zeros", "replicate"),
        "padding of a 3D network before the start of a stream (replicate: the first frame)",
    ),
    "persons": (*_COUNT, "persons in the input of a skeleton network"),
    "axes": (*_COUNT, "coordinates per joint, without the score"),
    "normalise": (
        *_one_of("ntu", "kinetics", "pyskl", "body", "none"),
        "normalisation of skeletons (default: that of the layout's data set)",
    ),
    "compat": (
        *_one_of("continual-skeletons", "none"),
        "attention of AGCN* weights: as in their training, or correct",
    ),
    "labels": (
        *_TEXT,
        "thumos14, tvseries, fineaction, gtzan, coco, imagenet-vid, epic-verbs, kinetics-400,"
        " kinetics-600, ntu-60, audioset-521, audioset-527, or a text file (default: by the task"
        " and the number of classes)",
    ),
    "background": (*_TEXT, "the label that is not an event"),
    "rate_hz": (
        _rate,
        "a number above 0",
        "steps per second (thumos14, gtzan: 4, skeletons: mostly 30)",
    ),
    "size": (*_COUNT, "longer side of NanoDet's pictures in pixels, a multiple of 32"),
    "norm_eps": (_rate, "a number above 0", "added to the variance in layer norms of YOLOS"),
    "weights": (
        *_TEXT,
        "of a checkpoint with several: plain, ema (their moving average), or the start of the"
        " tensors' names",
    ),
    "trained_on": (*_TEXT, "training data of the weights, for the card"),
    "licence": (*_TEXT, "licence of the weights, for the card: an SPDX identifier, or a text"),
    "licence_class": (
        *_one_of(*CLASSES),
        "what the weights may be used for (default: as an SPDX identifier says, or unknown)",
    ),
}
TERMS = ("trained_on", "licence", "licence_class")  # of the card
CARD_KEYS = ("labels", "background", "rate_hz", *TERMS)


PUBLISHED = "the published settings"


class ImportSettings:
    """Settings of one import: the user's values, the checkpoint's arguments, published settings.

    Missing and contradictory settings are collected, so that ``settle`` names all of them at once.
    """

    def __init__(self, config: Mapping[str, str], keys: Iterable[str]) -> None:
        """Parse the pairs; UsageError for a key not in ``keys`` or a value of the wrong type."""
        self._known = tuple(keys)
        self._given: dict[str, Any] = {}
        self._arguments: dict[str, Any] = {}
        self._taken: dict[str, tuple[Any, str]] = {}  # value and origin
        self._missing: list[str] = []
        self._wrong: list[str] = []
        self._surplus: list[str] = []  # keys to leave out
        for key, text in config.items():
            if key not in self._known:
                near = difflib.get_close_matches(key, self._known, 1)
                ask = f"did you mean {near[0]}? " if near else ""
                known_keys = ", ".join(self._known)
                raise UsageError(f"--config {key}: unknown; {ask}known keys: {known_keys}")
            read, kind, _ = KEYS[key]
            try:
                self._given[key] = read(text)
            except (ValueError, KeyError) as error:
                pairs = [f"--config {pair.strip()}" for pair in f"{key}={text}".split(",")]
                hint = f"one option for each: {' '.join(pairs)}" if "=" in text else None
                raise UsageError(f"--config {key}={text}: not {kind}", hint=hint) from error

    def adopt(self, args: Mapping[str, Any], aliases: Mapping[str, str]) -> None:
        """Adopt values from the arguments in the checkpoint; ``aliases``: their name -> ours."""
        for theirs, ours in aliases.items():
            value = args.get(theirs)
            if isinstance(value, int) and not isinstance(value, bool):
                self._compare(ours, value, f"whose arguments say {theirs}={value}")
                self._arguments[ours] = value

    def suggest(self, values: Mapping[str, Any], origin: str = PUBLISHED) -> None:
        """Take ``values`` for keys that have no value yet; ``taken`` lists them."""
        for key, value in values.items():
            if key in self._known and self.get(key) is None:
                self._taken[key] = (value, origin)

    def suggested(self, key: str) -> bool:
        """Return whether the value of a key is one of ``suggest``."""
        return key in self._taken and key not in self._given and key not in self._arguments

    def forget(self, key: str) -> None:
        """Undo ``suggest``."""
        del self._taken[key]

    def check(self, key: str, value: Any) -> Any:
        """Return ``value``, read from the tensors; it is a contradiction if the user's differs."""
        self._compare(key, value, f"whose tensors say {value}")
        return value

    def require(self, key: str, placeholder: Any = 1) -> Any:
        """Return a value that no tensor determines.

        If it is unknown, return the placeholder: the import goes on until ``settle``.
        """
        value = self.get(key)
        if value is None and key not in self._missing:
            self._missing.append(key)
        return placeholder if value is None else value

    def reject(self, message: str) -> None:
        """Collect another message about a setting that does not fit the checkpoint."""
        self._wrong.append(message)

    def get(self, key: str) -> Any:
        """Return a value, or None when it is unknown."""
        taken = self._taken.get(key, (None, ""))[0]
        return self._given.get(key, self._arguments.get(key, taken))

    def heads(self, key: str, width: int) -> int:
        """Return a required number of heads, which must divide ``width``.

        Published heads count only if they do.
        """
        if self.suggested(key) and width % self.get(key):
            self.forget(key)
        heads: int = self.require(key)
        if width % heads:
            self.reject(f"{key}={heads} does not divide the token width {width}")
        return heads

    @property
    def terms(self) -> dict[str, Any]:
        """The fields TERMS of the card; the class of a licence that is not known is None."""
        licence = self.get("licence") or ""
        return {
            "trained_on": self.get("trained_on") or "",
            "licence": licence,
            "licence_class": self.get("licence_class") or class_of(licence),
        }

    @property
    def taken(self) -> dict[str, str]:
        """Values that neither user nor checkpoint gave, as ``key=value`` texts by their origin."""
        out: dict[str, list[str]] = {}
        for key, (value, origin) in self._taken.items():
            if self.suggested(key):
                out.setdefault(origin, []).append(f"{key}={_text(value)}")
        return {origin: ", ".join(pairs) for origin, pairs in out.items()}

    def settle(self, error: str = "") -> None:
        """Raise one ModelError with ``error`` and all that is missing or contradictory, if any."""
        parts = [error, *self._wrong]
        if self._missing:
            parts.append(
                f"the checkpoint does not contain {', '.join(map(_meaning, self._missing))}"
            )
        hints = []
        if self._surplus:
            hints.append(f"leave out {' '.join(f'--config {key}' for key in self._surplus)}")
        if self._missing:
            flags = " ".join(f"--config {key}=..." for key in self._missing)
            hints.append(f"set {'it' if len(self._missing) == 1 else 'them'}: {flags}")
        message = "; ".join(filter(None, parts))
        if message:
            raise ModelError(message, hint="; ".join(hints))

    def _compare(self, key: str, value: Any, source: str) -> None:
        if self._given.get(key, value) != value:
            self._surplus.append(key)
            given = _text(self._given[key])
            self.reject(f"--config {key}={given} contradicts the checkpoint, {source}")


def _meaning(key: str) -> str:
    _, kind, meaning = KEYS[key]
    values = "" if kind.startswith("a ") or kind == "text" else f"; {kind}"
    return f"{key} ({meaning}{values})"


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def published_labels(config: Mapping[str, str]) -> list[str]:
    """Return the labels that the settings of a published checkpoint name; empty: they do not."""
    labels = KNOWN.get(config.get("labels", ""))
    return [] if labels is None else [n for n in labels.names if n != labels.background]


def check_published(config: Mapping[str, str], where: str) -> None:
    """Raise ModelError, which names ``where``, for an invalid setting in a table of checkpoints."""
    try:
        ImportSettings(config, KEYS)
    except UsageError as error:
        raise ModelError(str(error).replace("--config", "import:"), where=where) from error


def read_pairs(pairs: Iterable[str]) -> dict[str, str]:
    """Split ``key=value`` texts; UsageError for one without ``=`` and for a repeated key."""
    out: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key or not value:
            raise UsageError(f"--config {pair}: not key=value")
        if key in out:
            raise UsageError(f"--config {key}: given twice")
        out[key] = value.strip()
    return out
