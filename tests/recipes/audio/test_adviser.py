"""The classifier of recordings that advises the models of sound."""

from __future__ import annotations

import torch

from costream.labels.recording import SILENCE
from weights.recipes.audio.adviser import ALIKE, Adviser, fit_adviser
from weights.recipes.audio.data import EVENTS, OTHER

LABELS = ("drilling", "jackhammer", OTHER, "rain", SILENCE, "wind")
KNOWN = ("drilling", "jackhammer", "rain", "wind")
CLASSES = ("Drill", "Jackhammer", "Rain", "Wind")
CLASSES += tuple(sorted({name for k in KNOWN for name in ALIKE[k]} - {*CLASSES}))


def recordings(labels, of_source, generator):
    """Tokens [N, 1, 8], half of which say the label, half the source; what the teacher says."""
    rows = torch.eye(4)[labels] + 0.3 * torch.randn(len(labels), 4, generator=generator)
    said = torch.zeros(len(labels), len(CLASSES))
    said[:, :4] = rows
    return torch.cat([rows, of_source], 1)[:, None], said


def accuracy(classes):
    """Share of new sources that are right after learning from one source of each label."""
    generator = torch.Generator().manual_seed(0)
    few = torch.arange(4).repeat_interleave(6)
    own = 2 * torch.randn(4, 4, generator=generator)[few]
    many = torch.randint(4, (300,), generator=generator)
    known, said = recordings(few, own, generator)
    rest, of_rest = recordings(many, 2 * torch.randn(300, 4, generator=generator), generator)
    names = [*(KNOWN[k] for k in few.tolist()), *[None] * 300]
    adviser = fit_adviser([*known, *rest], [*said, *of_rest], names, LABELS, classes, 40)
    guesses = adviser(rest[:, 0]).argmax(-1)
    return float((guesses == torch.tensor([LABELS.index(KNOWN[k]) for k in many])).float().mean())


def test_a_label_of_one_source_is_known_by_what_the_teacher_knows():
    others = [*CLASSES[4:], *CLASSES[:4]]  # what is like the labels is another class
    assert accuracy(CLASSES) > accuracy(others) + 0.1


def test_all_labels_are_like_something():
    assert set(EVENTS) <= set(ALIKE)


def test_advice_on_streams_is_by_sound_and_leaves_other_and_silence():
    counted = torch.tensor([label not in (OTHER, SILENCE) for label in LABELS])
    adviser = Adviser(10 * torch.eye(3, 6), torch.zeros(6), counted)
    targets = torch.zeros(1, 9, 6)
    targets[0, :4, 0] = 1  # drilling, of which the first tokens are like a jackhammer's
    targets[0, 4:6, 4] = 1
    targets[0, 6:8, 1], targets[0, 6:8, 2] = 0.75, 0.25
    tokens = torch.zeros(1, 9, 3)
    tokens[0, :4, 0], tokens[0, :1, 1], tokens[0, 6:8, 1] = 1, 1, 1
    told = adviser.advise(tokens, targets)
    torch.testing.assert_close(told.sum(-1), targets.sum(-1))
    assert torch.equal(told[0, 4:6], targets[0, 4:6])
    assert torch.equal(told[0, 8], torch.zeros(6))  # unknown
    assert torch.allclose(told[0, :4], told[0, :1].expand(4, -1))
    assert told[0, 0, 0] > 0.95
    torch.testing.assert_close(told[0, 6, 2], targets[0, 6, 2])
    assert 0.7 < told[0, 6, 1] < 0.75


def test_its_logits_as_a_layer():
    generator = torch.Generator().manual_seed(0)
    counted = torch.tensor([label not in (OTHER, SILENCE) for label in LABELS])
    weight, bias = torch.randn(3, 6, generator=generator), torch.randn(6, generator=generator)
    adviser, tokens = Adviser(weight, bias, counted), torch.randn(5, 3, generator=generator)
    logits = adviser.layer(0.5)(tokens)
    assert not logits.requires_grad
    assert torch.equal(logits[:, ~counted], torch.zeros(5, 2))
    torch.testing.assert_close(logits.sum(-1), torch.zeros(5))
    told = (2 * logits[:, counted]).softmax(-1)
    torch.testing.assert_close(told, adviser(tokens)[:, counted])


def test_long_recordings_count_by_their_parts_too():
    """A recording of three parts counts more than one of a part."""
    generator = torch.Generator().manual_seed(0)
    tokens = [0.1 * torch.randn(n, 4, generator=generator) for n in (8, 8, 120)]
    for rows, column in zip(tokens, (0, 1, 2), strict=True):
        rows[:, column] += 1
    said = [torch.zeros(len(CLASSES))] * 3
    adviser = fit_adviser(tokens, said, KNOWN[:3], LABELS, CLASSES, 40)
    equal = fit_adviser([*tokens[:2], tokens[2][:8]], said, KNOWN[:3], LABELS, CLASSES, 40)
    whole = torch.eye(4)[2]
    assert adviser(whole)[3] > equal(whole)[3] > 0.34  # rain; its three parts count as well
