"""Licence classes: what weights may be used for, from any use to research only."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias, get_args

from costream.weights_io.card import Card, LicenceClass

AllowedLicence: TypeAlias = Literal["free", "non-commercial", "any"]
CLASSES: tuple[str, ...] = get_args(LicenceClass)  # each excludes more uses than the one before
UNKNOWN = "unknown"
_USES = {
    "free": "any use",
    "non-commercial": "non-commercial use only",
    "research": "research use only",
}

# SPDX identifiers; "+" and "-or-later" may follow. Copyleft licences allow any use.
_FREE = re.compile(
    r"(0BSD|AFL-|Apache-|Artistic-|BSD-|BSL-|CC0-|CC-BY-\d|CC-BY-SA-|ECL-|EPL-|[AL]?GPL-|ISC$"
    r"|MIT(-0)?$|MPL-|ODC-By-|ODbL-|PDDL-|Unlicense$|Zlib$)",
    re.IGNORECASE,
)
_NON_COMMERCIAL = re.compile(r"CC-BY-NC(-SA|-ND)?-\d", re.IGNORECASE)


def licence_class(card: Card) -> str:
    """Return the licence class of a card's weights: one of CLASSES, or UNKNOWN."""
    return card.licence_class or UNKNOWN


def licence_use(card: Card) -> str:
    """Return what the weights of a card may be used for, in words."""
    return _USES.get(licence_class(card), "use unknown")


def class_of(licence: str) -> LicenceClass | None:
    """Return the class of an SPDX identifier; None for other texts, whose class is unknown."""
    if " " in licence:
        return None
    if _NON_COMMERCIAL.match(licence):
        return "non-commercial"
    return "free" if _FREE.match(licence) else None


def narrowest(classes: Iterable[LicenceClass | None]) -> LicenceClass | None:
    """Return the class of weights that were made from others of these classes.

    With research-only parts they are for research only, whatever the others are; otherwise an
    unknown part (None) makes the result unknown.
    """
    found = set(classes)
    if "research" in found:
        return "research"
    if None in found or not found:
        return None
    return "non-commercial" if "non-commercial" in found else "free"


def terms_of(cards: Iterable[Card]) -> dict[str, Any]:
    """Return ``licence`` and ``licence_class`` of models that run together as one."""
    cards = list(cards)
    texts = (f"{card.name}: {card.licence}" for card in cards if card.licence)
    narrow = narrowest(card.licence_class for card in cards)
    return {"licence": "; ".join(texts), "licence_class": narrow}


def is_allowed(found: str, allowed: AllowedLicence | None) -> bool:
    """Return whether an option ``--licence`` (None: not set) allows a class; UNKNOWN needs any."""
    if allowed in (None, "any"):
        return True
    return found in CLASSES and CLASSES.index(found) <= CLASSES.index(str(allowed))
