"""Learned policy of the shipped detector: ``python -m weights.recipes.objects.token_gate``.

Reads the packs action_clips and actions_video, none of whose films detectors are scored on. While
the network goes through a film with few tokens, chosen by distances, every third frame is computed
in full, too, with gradients: how much the outputs would change, to first order, if a token kept its
reference at a gate is (g . e)^2, with e its change, and g the gradient of a random projection of
the outputs (Hutchinson, 1990). ``TokenGate`` learns the logarithm of the sum of that over all gates
from the change and the content of a token at the first gate, frame by frame. It is written into the
weight file of the detector, whose other weights stay as they are.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from costream.models.build import build, save_model
from costream.models.eventful.box_heads import pool
from costream.models.eventful.feature_maps import View
from costream.models.eventful.vitdet import ViTDet, ViTDetState
from costream.models.images import Pixels
from costream.nn.eventful.attention import TokenWindows, attend_frame, attend_frame_windows
from costream.nn.eventful.block import EventfulBlock, EventfulBlockState
from costream.nn.eventful.counts import Operations
from costream.nn.eventful.policies import TopTokens
from costream.nn.eventful.token_gate import TokenGate
from costream.training.card_text import card_text
from costream.training.objects.detector_card import detection_table
from costream.weights_io.file import read_weights
from weights.recipes.common import carry_out, parser, read_member
from weights.recipes.objects.data import decode_clip

SIZES = (8, 4, 16)  # content, changes, hidden
_PACKS = ("action_clips", "actions_video")
_FILMS, _FRAMES, _EVERY = 60, 24, 3  # of each pack, of each film, between frames with gradients
_SHARES = (8, 16, 16, 32, 64)  # of the tokens, one in so many, drawn for each frame
_PROJECTIONS, _TOKENS, _BATCH, _STEPS, _RATE = 4, 192, 24, 1600, 4e-3
_LEARNT = (
    " The policy of the gates (token_gate.py) learnt from gradients in {} frames of films of"
    " action_clips and actions_video."
)
Sample = tuple[Tensor, Tensor, Tensor]  # change [N, D], tokens [N, D], what depends on each [N]


def films(packs: Path, box: tuple[int, int], seed: int) -> Iterator[list[Tensor]]:
    """Yield the first frames of films, uint8 [3, h, w], of four in five: the fifth is left out."""
    draw = random.Random(seed)
    for pack in _PACKS:
        with tarfile.open(packs / f"{pack}.tar") as archive:
            names = sorted(n for n in archive.getnames() if n.endswith(".mp4"))
            for number, name in enumerate(draw.sample(names, _FILMS)):
                frames = decode_clip(read_member(archive, name), box)
                film = list(itertools.islice(frames, _FRAMES))
                if number % 5 < 4 and len(film) > _EVERY:
                    yield film


def compute_in_full(net: ViTDet, x: Tensor) -> tuple[list[Tensor], View]:
    """Return what each gate gets, [1, N, D], with gradients, and the feature maps of a frame."""
    x = net.backbone.position_encoding(x)
    gates: list[Tensor] = []

    def gate(tokens: Tensor) -> Tensor:
        gates.append(tokens if gates else tokens.detach().requires_grad_())
        return gates[-1]

    for block in cast(Sequence[EventfulBlock], net.backbone.blocks):
        shape, frame = x.shape, block._frame(*x.shape[1:3])
        qkv = block.qkv(gate(block.input_layer_norm(x).flatten(1, 2)))
        if isinstance(frame, TokenWindows):
            out = attend_frame_windows(qkv, frame, block.relative_position, block.qkv.bias)
        else:
            out = attend_frame(qkv, frame, block.relative_position)
        x = x + block.projection(gate(out)).view(shape)
        hidden = block.mlp_1(gate(block.mlp_layer_norm(x).flatten(1, 2)))
        x = x + block.mlp_2(block.activate(hidden)).view(shape)
    return gates, net.view(gate(x.flatten(1, 2)).view(x.shape))


def soft_outputs(net: ViTDet, view: View, size: tuple[int, int]) -> Tensor:
    """Return objectness, class scores, and deltas weighted by them, [n]."""
    seen = torch.cat([p[0].flatten() for p in view.predicted]).sigmoid()
    deltas = torch.cat([p[1].flatten(0, -2) for p in view.predicted])
    with torch.no_grad():
        boxes = [proposals.boxes for proposals in net.propose(view, size)]
    head, predictor = net.roi_heads.stages()[0]
    logits, moves = predictor(head(pool(view.maps, net.strides, boxes)))
    scores = logits.softmax(-1)[:, :-1]
    parts = (seen / 2, deltas * seen.detach()[:, None] / 5, scores)
    return torch.cat([y.flatten() for y in (*parts, moves * scores.detach()[..., None] / 5)])


def references(state: ViTDetState) -> list[Tensor]:
    """Return the references [N, D] of all gates."""
    blocks = cast(Sequence[EventfulBlockState], state.backbone.blocks)
    found = [g.reference[0] for b in blocks for g in (b.qkv, b.projection, b.mlp)]
    return found if state.view is None else [*found, state.view.reference[0]]


def gather(net: ViTDet, packs: Path, box: tuple[int, int], seed: int) -> Iterator[Sample]:
    """Yield what is learnt from, one sample of each frame that is computed in full."""
    pixels, draw = Pixels(box, net.patch), random.Random(seed)
    for film in films(packs, box, seed):
        pictures = [pixels(frame[None]) for frame in film]
        size = (pictures[0].shape[2], pictures[0].shape[3])
        state = net.init_state(1, *size)
        for number, picture in enumerate(pictures):
            with torch.no_grad():
                tokens = net.embed(picture)
            if number > 1 and number % _EVERY == 0:
                gates, view = compute_in_full(net, tokens)
                out, total = soft_outputs(net, view, size), torch.zeros(tokens[0, ..., 0].numel())
                changes = [g[0].detach() - r for g, r in zip(gates, references(state), strict=True)]
                for _ in range(_PROJECTIONS):
                    signs = torch.randint(2, out.shape) * 2.0 - 1
                    found = torch.autograd.grad(out @ signs, gates, retain_graph=True)
                    for g, e in zip(found, changes, strict=True):
                        total += (g[0] * e).sum(-1) ** 2 / _PROJECTIONS
                yield changes[0], gates[0][0].detach(), total
            count = tokens[0, ..., 0].numel() // draw.choice(_SHARES)
            with torch.no_grad():
                net.view_step(tokens, state, TopTokens(count), Operations())


def fit(samples: Sequence[Sample], steps: int, seed: int) -> TokenGate:
    """Return a gate whose estimates order the tokens of each frame by what depends on them."""
    torch.manual_seed(seed)
    gate = TokenGate(samples[0][0].shape[1], *SIZES)
    drawn = [torch.randperm(len(total))[:_TOKENS] for _, _, total in samples]
    change, tokens, total = (
        torch.stack([part[k] for part, k in zip(parts, drawn, strict=True)])
        for parts in zip(*samples, strict=True)
    )
    wanted = (total + 1e-9).log()
    optimizer = torch.optim.AdamW(gate.parameters(), _RATE, weight_decay=0.02)
    falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 1e-3, steps)
    for _ in range(steps):
        batch = torch.randint(len(samples), (_BATCH,))
        out, target = gate.estimate(change[batch], tokens[batch]), wanted[batch]
        shares = -(target.softmax(-1) * out.log_softmax(-1)).sum(-1).mean()
        apart = (out - out.mean(-1, keepdim=True)) - (target - target.mean(-1, keepdim=True))
        optimizer.zero_grad()
        torch.autograd.backward(shares + 0.05 * (apart**2).mean())
        optimizer.step()
        falling.step()
    return gate.eval()


def make(options: argparse.Namespace) -> list[Path]:
    """Write the gate into eventful-vitdet.safetensors, and its card; return the written files."""
    torch.manual_seed(options.seed)
    path = options.output / "eventful-vitdet.safetensors"
    stored = read_weights(path)
    plain = {k: v for k, v in stored.card.arguments.items() if k != "token_gate"}
    kept = {k: v for k, v in stored.tensors.items() if ".token_gate." not in k}
    card = replace(stored.card, arguments=plain)
    network = cast(ViTDet, build(card, kept)[0]).float().eval().requires_grad_(False)
    box = cast("tuple[int, int]", tuple(card.frontend_arguments["box"]))
    samples = list(gather(network, options.packs, box, options.seed))
    network.token_gate = fit(samples, options.steps, options.seed)
    trained_on = card.trained_on.partition(_LEARNT[:20])[0] + _LEARNT.format(len(samples))
    card = replace(card, arguments={**plain, "token_gate": list(SIZES)}, trained_on=trained_on)
    save_model(path, card, network.half())
    path.with_suffix(".md").write_text(card_text(card, detection_table), encoding="utf-8")
    return [path]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the recipe from the command line; return the exit code."""
    options = parser("objects", "folder of the .tar packs", _STEPS).parse_args(argv)
    return carry_out(lambda: make(options), options.threads)


if __name__ == "__main__":
    sys.exit(main())
