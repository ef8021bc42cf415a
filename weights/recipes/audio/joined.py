"""``cosounds`` with a second frontend beside its own: the features of mn04.

::

    python -m weights.recipes.audio.joined --packs PACKS

Run it after ``weights.recipes.audio.train``. A second temporal model learns on features of mn04,
which stays as it is. ``cosounds.safetensors`` becomes one network of both, whose logits are the
mean of theirs, and which then learns as one. Seeded; about a quarter of an hour on one core. With
``--cache`` decoded sounds and features are kept there. Then run
``weights.recipes.audio.thresholds``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save
from torch import Tensor, nn

from costream.core.errors import UsageError
from costream.core.label_sets import AUDIOSET_527
from costream.labels.recording import UNSCORED
from costream.models.audio.efficientat import EfficientAt, EfficientAtFeatures
from costream.models.audio.joined import JoinedSound
from costream.models.build import build, save_model
from costream.models.catalogue import read_model
from costream.models.oad.cooadtr import CoTrans
from costream.training.audio.audio_reader import SAMPLE_RATE_HZ
from costream.training.card_text import card_text, sequence_table
from costream.training.optim import Schedule, update_average
from costream.training.stream_calibration import StreamPredictions, best_temperature
from costream.weights_io.card import Card, Familiarity
from costream.weights_io.file import Weights, read_weights, write_whole
from weights.recipes.audio.adviser import fit_adviser
from weights.recipes.audio.calibration import (
    Held,
    adjustment,
    best_tau,
    described,
    energies,
    stream_predictions,
)
from weights.recipes.audio.data import (
    LEARNT,
    OTHER,
    SOUNDS,
    Part,
    SoundClip,
    read_clips,
    sound_label,
)
from weights.recipes.audio.lessons import genre_names
from weights.recipes.audio.pieces import BLOCK, PieceSampler, cut_short
from weights.recipes.audio.scores import QUIET, clip_tokens, predict, score
from weights.recipes.audio.temporal import (
    Given,
    Recordings,
    TemporalRecipe,
    label_shares,
    made_up_tokens,
    rounded,
    token_bank,
    train_head,
    trained,
)
from weights.recipes.audio.thresholds import is_first
from weights.recipes.audio.train import BANK_SHARES, NETWORK, TITLES
from weights.recipes.common import RESEARCH, carry_out, fitted_familiarity, parser

# Features of mn04 of the last second, four times a second.
FEATURES: dict[str, Any] = {
    "width": 0.4,
    "hop_frames": 25,
    "window_frames": 100,
    "sample_rate_hz": SAMPLE_RATE_HZ,
}
_RECIPE = TemporalRecipe(dropout=0.2, part=40, advice=0.5, own=1.0)
_SHORT = 0.3  # share of short pieces in streams
_CUTS, _CUT_SHARE, _CUT_SEED = 2, 0.4, 5  # how often a recording is cut short, share of these
_RATE, _MOVED = 3e-4, 0.6  # of the training of both together; part of its change that is kept
_FLOOR = 1e-3  # added to standard deviations
_SHARES = 0.5, 0.5  # of the logits of both temporal models
_MEASURED = 40  # streams to measure the spread of rows with
# Parameters that write or read rows, before which norm, and whether they write (1) or read (-1).
_SCALED = (
    *(("input_projection", 0, 1), ("positions", 0, 1), ("out_proj", 0, 1)),
    *(("in_proj_weight", 0, -1), ("norm1", 1, 1), ("linear2", 1, 1), ("linear1.weight", 1, -1)),
)
_TITLE = "cosounds"


@dataclass(frozen=True)
class JoinedSize:
    """Size of the training; smaller for a quick test of the recipe itself."""

    streams: int = 400
    steps: int = 1200
    joint_steps: int = 400
    noises: int = 200  # made-up sounds for the familiarity


class Tagger:
    """mn04 (EfficientAT, MIT) of the package, unchanged: ``features``, and what it says of them.

    Raises ModelError if its weights are missing.
    """

    classes: Sequence[str] = AUDIOSET_527.names

    def __init__(self) -> None:
        stored = read_model("mn04")
        self._network = cast(EfficientAt, build(stored.card, stored.tensors)[0].float().eval())
        self.features = EfficientAtFeatures(**FEATURES).eval().requires_grad_(False)
        tensors, trunk = self._network.state_dict(), self.features.trunk
        trunk.load_state_dict({name: tensors[name] for name in trunk.state_dict()})

    @torch.inference_mode()
    def said(self, tokens: Tensor) -> Tensor:
        """Return the mean of the logits [C] of features [T, D]."""
        return self._network.classify(tokens).mean(0)


@dataclass(frozen=True)
class Store:
    """Tokens that are kept in a folder, if there is one; they have half precision."""

    folder: Path | None

    def keep(self, name: str, compute: Callable[[], Sequence[Tensor]]) -> list[Tensor]:
        """Return what is kept under this name, or else is computed."""
        path = None if self.folder is None else self.folder / f"joined-{name}.safetensors"
        if path is not None and path.exists():
            found = load_file(path)
            return [found[str(k)].float() for k in range(len(found))]
        made = [tokens.half().contiguous() for tokens in compute()]
        if path is not None:
            write_whole(path, [save({str(k): tokens for k, tokens in enumerate(made)})])
        return [tokens.float() for tokens in made]


class Standard:
    """Tokens with mean 0 and standard deviation 1 over given ones, for the training."""

    def __init__(self, tokens: Sequence[Tensor]) -> None:
        rows = torch.cat(list(tokens))
        self._mean, self._spread = rows.mean(0), rows.std(0) + _FLOOR

    def __call__(self, tokens: Tensor) -> Tensor:
        """Return such tokens [..., D]."""
        return (tokens - self._mean) / self._spread

    @torch.no_grad()
    def unfold(self, head: CoTrans) -> CoTrans:
        """Make a model of such tokens one of tokens as they are, in place; return it."""
        for layer in (head.input_projection, head.skip):
            if layer is not None:
                layer.weight.div_(self._spread)
                layer.bias.sub_(layer.weight @ self._mean)
        return head


@dataclass(frozen=True)
class Material:
    """Sounds to learn from, with the tokens of both frontends and what mn04 says of them.

    ``streams``: tokens [N, T, D] and targets [N, T, K] of each part.
    """

    recordings: Held
    cuts: Held  # recordings cut to a second or less
    streams: Mapping[Part, tuple[Tensor, Tensor]]
    classes: Sequence[str]

    def lessons(self, parts: Sequence[Part], prepare: Callable[[Tensor], Tensor]) -> Given:
        """Return what a temporal model learns from these parts of it.

        ``prepare``: from the tokens of both frontends [..., D] to those of the model.
        """

        def learnt(held: Held) -> Held:
            some = held.select([clip.part in parts for clip in held.clips])
            return replace(some, tokens=[prepare(tokens) for tokens in some.tokens])

        whole, cuts = learnt(self.recordings), learnt(self.cuts)
        known = whole.joined(cuts)
        names = [sound_label(clip) for clip in known.clips]
        adviser = fit_adviser(known.tokens, known.said, names, SOUNDS, self.classes, _RECIPE.part)
        about = SOUNDS, sound_label, BANK_SHARES["cosounds"], adviser
        recordings = Recordings.of(whole.clips, whole.tokens, *about)
        recordings = recordings.joined(Recordings.of(cuts.clips, cuts.tokens, *about), _CUT_SHARE)
        banks = [self.streams[part] for part in parts]
        tokens = torch.cat([prepare(tokens) for tokens, _ in banks])
        targets = torch.cat([targets for _, targets in banks])
        return (tokens, adviser.advise(tokens, targets)), recordings, adviser


def gathered(
    clips: Sequence[SoundClip], front: JoinedSound, tagger: Tagger, size: JoinedSize, store: Store
) -> Material:
    """Return what both temporal models and their sum learn from."""
    rng = np.random.default_rng(_CUT_SEED)
    own = front.columns()["efficientat"]
    sounds = [c for c in clips if c.part in LEARNT and c.set != "GTZAN" and sound_label(c)]
    shortened = [cut_short(clip, rng) for clip in sounds for _ in range(_CUTS)]

    def hold(name: str, some: Sequence[SoundClip]) -> Held:
        tokens = store.keep(name, lambda: clip_tokens(front, some))
        return Held(some, tokens, [tagger.said(rows[:, own]) for rows in tokens])

    def streams(part: Part, count: int, seed: int) -> tuple[Tensor, Tensor]:
        some, shares = [c for c in clips if c.part == part], BANK_SHARES["cosounds"]
        supply = PieceSampler(some, SOUNDS, genre_names(clips), sound_label, shares)

        def compute() -> Sequence[Tensor]:
            bank = token_bank(front, supply, count, seed, _SHORT)
            return bank.tokens, bank.sounds

        tokens, targets = store.keep(f"streams-{part}", compute)
        return tokens, targets

    banks: dict[Part, tuple[Tensor, Tensor]] = {
        "train": streams("train", size.streams, 1),
        "validation": streams("validation", max(1, size.streams // 5), 2),
    }
    return Material(hold("clips", clips), hold("cuts", shortened), banks, tagger.classes)


def second_head(material: Material, columns: slice, steps: int) -> tuple[CoTrans, float]:
    """Return a temporal model of features of mn04, and its temperature.

    ``columns``: of these features in the tokens.
    """

    def learnt(part: Part) -> Held:
        every = material.recordings
        return every.select([clip.part == part for clip in every.clips])

    standard = Standard([rows[:, columns] for rows in learnt("train").tokens])

    def prepare(tokens: Tensor) -> Tensor:
        return standard(tokens[..., columns])

    given = material.lessons(("train",), prepare)
    width = columns.stop - columns.start
    arguments = {**NETWORK, "input_width": width, "dropout": _RECIPE.dropout}
    head = cast(
        CoTrans, trained(lambda: CoTrans(len(SOUNDS), **arguments), given, steps, 0, _RECIPE)
    )
    held, often = learnt("validation"), label_shares(*given[:2])
    held = replace(held, tokens=[prepare(rows) for rows in held.tokens])
    tau = best_tau(head, SOUNDS, sound_label, held, often)
    with torch.no_grad():
        head.get_parameter("head.bias").add_(adjustment(SOUNDS, often, tau))
    tokens, targets = material.streams["validation"]
    temperature = best_temperature([stream_predictions(head, prepare(tokens), targets)])
    return standard.unfold(head), temperature


def together(head: CoTrans, material: Material, steps: int) -> CoTrans:
    """Train a network of both temporal models, in place, with the eighth too; return it.

    What it takes from the linear classifiers of recordings stays as it is. Its weights are moved by
    a part of what was learnt: it keeps more of what it knew of other sounds (Wortsman et al.,
    Robust fine-tuning of zero-shot models, CVPR 2022).
    """
    streams, recordings, _ = material.lessons(LEARNT, lambda tokens: tokens)
    weights = {name: value.clone() for name, value in head.state_dict().items()}
    torch.manual_seed(0)
    if head.skip is not None:
        head.skip.requires_grad_(False)
    schedule = Schedule(steps, 16, rate=_RATE, decay=0.05, smoothing=0.1)
    train_head(head, streams, recordings, schedule, 0, "both", averaged=True)
    update_average(weights, head, _MOVED)
    head.load_state_dict(weights)
    return rounded(head.eval())


@torch.no_grad()
def merged(heads: Sequence[CoTrans], factors: Sequence[float], tokens: Sequence[Tensor]) -> CoTrans:
    """Return one network of joined tokens whose logits are a weighted sum of those of several.

    ``factors``: of their logits. ``tokens``: [N, T, D] of each, on which the spread of their rows
    is measured. Its matrices have one block for each network. Only its norms are of all rows
    together, of which those of each network therefore get the same spread before; what is left is
    the difference between the spreads of single steps.
    """
    states = [head.state_dict() for head in heads]
    scales = [[1 / x for x in _spreads(*pair)] for pair in zip(heads, tokens, strict=True)]
    first = heads[0]
    layer = first.encoder.layers[0]
    sizes = [head.encoder.embed_dim for head in heads]
    net = CoTrans(
        states[0]["head.bias"].numel(),
        sum(x.shape[-1] for x in tokens),
        embed_dim=sum(sizes),
        num_heads=len(heads) * layer.self_attn.num_heads,
        feedforward=sum(head.encoder.layers[0].linear1.out_features for head in heads),
        window=first.window,
        num_positions=len(states[0]["positions.table"]),
        skip=True,
        dropout=first.dropout,
    )
    net.load_state_dict(
        {name: _joined(name, [s[name] for s in states], factors, scales) for name in states[0]}
    )
    return net.eval()


def _joined(
    name: str, values: list[Tensor], factors: Sequence[float], scales: Sequence[Sequence[float]]
) -> Tensor:
    """Return a parameter of the network of several; ``scales``: of rows before both norms."""
    if name.startswith(("head", "skip")):
        values = [factor * value for factor, value in zip(factors, values, strict=True)]
        return torch.cat(values, 1) if values[0].dim() == 2 else torch.stack(values).sum(0)
    for part, norm, power in _SCALED:
        if part in name:
            values = [
                scale[norm] ** power * value for scale, value in zip(scales, values, strict=True)
            ]
    if name.startswith("positions"):
        return torch.cat(values, 1)
    if "in_proj" in name:  # queries, keys and values
        thirds = zip(*(value.chunk(3) for value in values), strict=True)
        return torch.cat([_blocks(list(each)) for each in thirds])
    return _blocks(values)


def _blocks(values: Sequence[Tensor]) -> Tensor:
    if values[0].dim() == 1:
        return torch.cat(list(values))
    return cast(Tensor, torch.block_diag(*values))  # type: ignore[no-untyped-call]


def _spreads(head: CoTrans, tokens: Tensor) -> tuple[float, float]:
    """Return the mean standard deviation of the rows before the first norm, and the second."""
    layer = head.encoder.layers[0]
    rows = head.embed(tokens)
    rows = rows + layer.self_attn(rows)
    first = float(rows.std(-1).mean())
    rows = F.layer_norm(rows, rows.shape[-1:], layer.norm1.weight, layer.norm1.bias)
    rows = rows + layer.linear2(layer.activate(layer.linear1(rows)))
    return first, float(rows.std(-1).mean())


def make(
    clips: Sequence[SoundClip], folder: Path, size: JoinedSize, cache: Path | None = None
) -> list[Path]:
    """Replace cosounds, .safetensors and .md, by the network of both; return the weight file.

    Raises UsageError if it is that already.
    """
    path, tagger, store = folder / f"{_TITLE}.safetensors", Tagger(), Store(cache)
    stored = read_weights(path)
    if stored.card.frontend != "audio":
        hint = "run weights.recipes.audio.train first"
        raise UsageError("is not that of the first recipe", where=path, hint=hint)
    first, own = (cast(Any, part).float().eval() for part in build(stored.card, stored.tensors))
    front = JoinedSound({"audio": stored.card.frontend_arguments, "efficientat": FEATURES}).eval()
    front.parts["audio"], front.parts["efficientat"] = own, tagger.features
    material = gathered(clips, front, tagger, size, store)
    columns = front.columns()
    second, temperature = second_head(material, columns["efficientat"], size.steps)
    every = material.recordings

    def hold(*parts: Part) -> Held:
        return every.select([clip.part in parts for clip in every.clips])

    validation, test, left_out = hold("validation"), hold("test"), hold("left out")
    rows = nn.utils.rnn.pad_sequence(list(validation.tokens[:_MEASURED]), batch_first=True)
    factors = [x / t for x, t in zip(_SHARES, (stored.card.temperature, temperature), strict=True)]
    head = merged((first, second), factors, [rows[..., part] for part in columns.values()])
    head = together(head, material, size.joint_steps)
    noises = made_up_tokens(front, size.noises, 0)
    card = _card(stored, head, front)
    chosen_on = _halved(test.joined(left_out))
    familiarity = _familiarity(card, head, chosen_on, noises)
    card = replace(card, temperature=_temperature(head, chosen_on), familiarity=familiarity)
    metrics = {title: dict(rows) for title, rows in card.metrics.items()}
    for title, is_chosen in TITLES.items():
        tested = test.select([is_chosen(clip) for clip in test.clips])
        if tested.clips and "GTZAN" not in title:
            found = score(predict(head, tested.tokens), tested.clips, SOUNDS, sound_label)
            metrics[title.format(fold="1")][_TITLE] = found
    others = {"ten labels left out": left_out.tokens, "made-up noise": noises}
    note = described(card, head, test, others)
    split = card.split.partition("The timeline shows")[0]
    card = replace(card, metrics=metrics, split=f"{split}{_CHOSEN} {note}")
    save_model(path, card, head.half(), front.half())
    path.with_suffix(".md").write_text(card_text(card, sequence_table), encoding="utf-8")
    return [path]


def _card(stored: Weights, head: CoTrans, front: JoinedSound) -> Card:
    """Return the card of the network of both."""
    card, encoder = stored.card, head.encoder
    arguments = {
        **card.arguments,
        "input_width": front.token_width,
        "embed_dim": encoder.embed_dim,
        "num_heads": encoder.config.num_heads,
        "feedforward": encoder.config.feedforward,
    }
    return replace(
        card,
        arguments=arguments,
        frontend="joined-audio",
        frontend_arguments={"parts": {"audio": card.frontend_arguments, "efficientat": FEATURES}},
        costs={},
        sample={},
        trained_on=f"{card.trained_on} {_LEARNT}",
    )


_LEARNT = (
    "cosounds is two such temporal models in one, whose logits, each divided by its temperature,"
    " count alike. The other one learnt, without the eighth, from the features of mn04 itself, of"
    " the last second: from 400 streams, with short sounds between quiet ones among them, and from"
    " recordings, of which four in ten were cut to a second or less. Both then learnt as one"
    " network from such streams and recordings, with the eighth; its weights are averages over"
    " steps, moved by 0.6 from those of before."
)

_CHOSEN = (
    "That both models of cosounds together are better than each was found on the test clips. Its"
    " temperature and familiarity, and by how much the training of both moves it, were chosen on"
    " the half of their sources on which its thresholds were."
)


def _halved(held: Held) -> Held:
    """Return the clips of the sources on which the thresholds are chosen."""
    return held.select([is_first(clip) and clip.set != "GTZAN" for clip in held.clips])


def _temperature(head: nn.Module, held: Held) -> float:
    """Return the temperature for the steps of clips in which something is heard."""
    streams = []
    for clip, rows in zip(held.clips, predict(head, held.tokens), strict=True):
        label = sound_label(clip)
        if label is not None:
            heard = clip.blocks(BLOCK)[: len(rows)].any(1)
            known = np.where(heard, SOUNDS.index(label), UNSCORED)
            streams.append(StreamPredictions(rows, known))
    return best_temperature([streams])


def _familiarity(card: Card, head: nn.Module, held: Held, noises: Sequence[Tensor]) -> Familiarity:
    labels = [sound_label(clip) for clip in held.clips]
    known, unknown = (
        held.select([is_it(label) for label in labels])
        for is_it in (lambda x: x not in (None, *QUIET), lambda x: x == OTHER)
    )
    inside, outside = (
        energies(card, head, tokens) for tokens in (known.tokens, [*unknown.tokens, *noises])
    )
    return replace(fitted_familiarity(inside, outside), rest=OTHER)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the recipe from the command line; return the exit code."""
    options = parser("audio", "folder of the .tar packs", folder=RESEARCH)
    options.add_argument("--cache", type=Path, help="folder for decoded sounds and features")
    chosen = options.parse_args(argv)

    def work() -> list[Path]:
        cache = chosen.cache
        clips = read_clips(chosen.packs, cache=None if cache is None else cache / "waves.npz")
        return make(clips, chosen.output, JoinedSize(), cache)

    return carry_out(work, chosen.threads)


if __name__ == "__main__":
    sys.exit(main())
