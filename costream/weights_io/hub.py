"""Files of the Hugging Face hub, named ``hf:OWNER/NAME[/FILE][@REVISION]``, and its model cards.

Needs the extra ``hub``. Address (``HF_ENDPOINT``), tokens, proxies and cache are those of
huggingface_hub.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from costream.core.errors import ModelError, UsageError
from costream.core.formatting import listed
from costream.core.records import AUDIO_TAGGING, IMAGE_CLASSIFICATION, OBJECT_DETECTION
from costream.weights_io.card import Card
from costream.weights_io.file import SUFFIX
from costream.weights_io.licences import CLASSES, UNKNOWN, class_of, licence_class, licence_use
from costream.weights_io.published import NO_LICENCE, Published

PREFIX = "hf:"
_ADDRESS = re.compile(r"hf:([\w-][\w.-]*/[\w-][\w.-]*)(?:/([^@]+))?(?:@([\w.-]+))?")
# Identifiers of licences that the hub knows and weights of costream have.
_LICENCES = {
    *("apache-2.0", "mit", "bsd-3-clause", "cc0-1.0", "agpl-3.0", "gpl-3.0"),
    *("cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0", "cc-by-nc-sa-4.0"),
}
_PIPELINES = {
    OBJECT_DETECTION: "object-detection",
    IMAGE_CLASSIFICATION: "image-classification",
    AUDIO_TAGGING: "audio-classification",
    "sound classification": "audio-classification",
    "text classification": "text-classification",
    "pose estimation": "keypoint-detection",
    "online action detection": "video-classification",
    "action recognition": "video-classification",
}


@dataclass(frozen=True)
class HubAddress:
    """A repository of the hub, and which of its files."""

    repository: str
    file: str | None
    revision: str | None

    @property
    def name(self) -> str:
        """The name of the model here. It has its owner's, so that it replaces no other model."""
        parts = (self.repository, self.file and self.file.removesuffix(SUFFIX), self.revision)
        return "--".join(filter(None, parts)).replace("/", "--")


@dataclass(frozen=True)
class HubFile:
    """A file of the hub, as the hub describes it."""

    address: HubAddress
    file: str
    commit: str
    entry: Published  # size, licence and digest


def read_address(text: str) -> HubAddress:
    """Return the address in a text. Raises UsageError if it is not one."""
    match = _ADDRESS.fullmatch(text)
    if match is None or ".." in text:
        raise UsageError(
            f"{text!r} is not an address of the hub",
            hint="hf:OWNER/NAME, hf:OWNER/NAME/FILE@REVISION",
        )
    return HubAddress(*match.groups())


def find_hub_file(address: HubAddress) -> HubFile:
    """Ask the hub about a file: its size, its digest and its licence.

    Raises ModelError if huggingface_hub is not installed, the hub does not answer or refuses, there
    is no such repository or file, or several files could be meant.
    """
    info = _ask_hub(address)
    files = {part.rfilename: part for part in info.siblings or ()}
    file = address.file or _only_file(address, sorted(files))
    if file not in files:
        hint = f"its files: {listed(sorted(files), 8)}"
        raise ModelError(f"has no file {file!r}", where=address.repository, hint=hint)
    data = info.card_data.to_dict() if info.card_data else {}
    licence = data.get("license")
    licence = data.get("license_name") or licence if licence == "other" else licence
    licence = licence if isinstance(licence, str) and licence else NO_LICENCE
    lfs = files[file].lfs
    digest = "" if lfs is None else lfs.sha256
    entry = Published(
        f"{PREFIX}{address.repository}",
        f"https://huggingface.co/{address.repository}",
        (files[file].size or 0) / 1e6,
        licence,
        f"{file} of huggingface.co/{address.repository}",
        "sha256" if digest else None,
        digest,
        licence_class=_class_of(licence),
    )
    return HubFile(address, file, str(info.sha), entry)


def fetch_hub_file(found: HubFile) -> tuple[Path, str]:
    """Download a file to the cache of the hub; return its path and its SHA-256.

    Raises ModelError if it cannot be downloaded, or has another digest than the hub states.
    """
    from huggingface_hub import HfApi

    repository = found.address.repository
    try:
        path = Path(HfApi().hf_hub_download(repository, found.file, revision=found.commit))
    except (OSError, ValueError) as error:
        raise _refused(repository, error) from error
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    if found.entry.digest not in ("", digest.hexdigest()):
        path.resolve().unlink(missing_ok=True)
        what = f"the SHA-256 of {found.file} is {digest.hexdigest()}, not that of the hub: deleted"
        raise ModelError(what, where=repository, hint="fetch it again")
    return path, digest.hexdigest()


def hub_card(card: Card, text: str) -> str:
    """Return a README.md for the hub: its metadata in YAML, then a card in Markdown."""
    first = re.split(r"[\s:,;]", card.licence.lower(), maxsplit=1)[0]
    meta: dict[str, Any] = {"license": first if first in _LICENCES else "other"}
    if meta["license"] == "other":
        known = licence_class(card)
        meta["license_name"] = UNKNOWN if known == UNKNOWN else f"{known}-use"
        meta["license_link"] = "README.md"
    meta["library_name"] = "costream"
    task = _PIPELINES.get(card.task)
    if task:
        meta["pipeline_tag"] = task
    meta["tags"] = ["costream", "continual-inference", card.architecture]
    # JSON is YAML: texts are quoted, lists are in brackets.
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in meta.items()]
    use = f"Licence class: {licence_class(card)} ({licence_use(card)})."
    return "\n".join(["---", *lines, "---", "", text.strip(), "", use, ""])


def _class_of(licence: str) -> Any:
    """Return the class of a licence of the hub; ``research-use`` is what ``hub_card`` writes."""
    return next((c for c in CLASSES if licence == f"{c}-use"), None) or class_of(licence)


def _ask_hub(address: HubAddress) -> Any:
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        hint = "pip install 'costream[hub]'"
        raise ModelError(f"needs the package huggingface_hub ({error})", hint=hint) from error
    try:
        return HfApi().model_info(
            address.repository, revision=address.revision, files_metadata=True, timeout=30
        )
    except (OSError, ValueError) as error:
        raise _refused(address.repository, error) from error


def _refused(repository: str, error: Exception) -> ModelError:
    """Return what a user can do about an error of huggingface_hub."""
    from huggingface_hub import errors

    reasons = {
        errors.GatedRepoError: (
            "asks for a consent",
            "accept its terms on its page, hf auth login",
        ),
        errors.RepositoryNotFoundError: ("there is no such repository", "or hf auth login first"),
        errors.RevisionNotFoundError: ("has no such revision", None),
        errors.HFValidationError: ("is not a name of a repository", "hf:OWNER/NAME"),
    }
    for kind, (what, hint) in reasons.items():
        if isinstance(error, kind):
            return ModelError(what, where=f"{PREFIX}{repository}", hint=hint)
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return ModelError(f"cannot be fetched ({lines[0]})", where=f"{PREFIX}{repository}")


def _only_file(address: HubAddress, files: list[str]) -> str:
    """Return the weight file of a repository. Raises ModelError if there is not exactly one."""
    for suffixes in ((SUFFIX,), (".pth", ".pt", ".bin", ".ckpt", ".tflite")):
        found = [file for file in files if PurePosixPath(file).suffix in suffixes]
        if len(found) == 1:
            return found[0]
        if found:
            hint = f"name one: {PREFIX}{address.repository}/{found[0]}"
            what = f"has {len(found)} weight files ({listed(found, 6)})"
            raise ModelError(what, where=address.repository, hint=hint)
    raise ModelError("has no weight file", where=address.repository)
