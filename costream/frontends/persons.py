"""Assignment of the persons of a source to the places of a network, step by step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from costream.nn.state import State


@dataclass
class PersonsState(State):
    """Owner of each of the P places of a network."""

    owner: Tensor  # int64 [B, P], slot of the source + 1; 0: none yet
    away: Tensor  # int64 [B, P], steps since the owner was last visible


@dataclass(frozen=True)
class SelectedPersons:
    """Persons selected at one step."""

    slot: Tensor  # int64 [B, P], slot of the source
    here: Tensor  # bool [B, P], False: nobody is visible in this place
    changed: Tensor  # bool [B, P], True: a different person than at the previous step


def init_persons(batch_size: int, persons: int, device: torch.device) -> PersonsState:
    """Return the initial state: all places are free."""
    with torch.inference_mode(False):
        owner = torch.zeros(batch_size, persons, dtype=torch.int64, device=device)
        return PersonsState(owner, owner.clone())


def select_persons(present: Tensor, state: PersonsState, patience: int) -> SelectedPersons:
    """Return the persons selected for a network; ``present``: bool [B, S], the source's slots.

    A place belongs to one person until that person has been absent for more than ``patience``
    steps; then the first other person who is visible and has no earlier place takes it.
    """
    taken = torch.zeros_like(present)
    slots, seen, new = [], [], []
    for place in range(state.owner.shape[1]):
        owner, away = state.owner[:, place], state.away[:, place]
        own = (owner - 1).clamp_(min=0)[:, None]
        here = (owner > 0) & (present & ~taken).gather(1, own)[:, 0]
        away = torch.where(here, 0, away + 1)
        lost = (owner == 0) | (away > patience) | taken.gather(1, own)[:, 0]
        free = present & ~taken
        take = ~here & lost & free.any(1)
        slot = torch.where(take, free.int().argmax(1), own[:, 0])
        here = here | take
        state.owner[:, place] = torch.where(take, slot + 1, owner)
        state.away[:, place] = torch.where(take, 0, away)
        taken.scatter_(1, slot[:, None], (taken.gather(1, slot[:, None])[:, 0] | here)[:, None])
        slots.append(slot)
        seen.append(here)
        new.append(take)
    return SelectedPersons(torch.stack(slots, 1), torch.stack(seen, 1), torch.stack(new, 1))
