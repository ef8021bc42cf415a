"""``costream clips``: cut the segments of results out of their sources."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import click

from costream.cli.click_command import Command
from costream.cli.printing import print_json
from costream.core.clock import format_time
from costream.core.errors import CostreamError, ExitCode, SourceError, UsageError, say
from costream.core.formatting import counted
from costream.core.records import Header, Segment, plain
from costream.core.spelling import folded
from costream.options.click_options import json_option, option
from costream.options.completers import file_names
from costream.options.values import seconds

TABLE = "clips.csv"
_SHORTER_S = 0.25  # a clip that is shorter than its range by more is reported


@dataclass(frozen=True)
class WrittenClip:
    """A row of clips.csv, and of ``clips --json``."""

    file: str  # in the folder of clips.csv
    picture: str | None  # of the start of the segment; null: sound
    source: str
    label: str
    start_s: float  # of the segment, in the source
    end_s: float
    score: float | None
    model: str
    person: int | None
    clip_start_s: float  # of the clip, in the source
    clip_end_s: float
    length_s: float  # of the clip, as it was read back


@dataclass(frozen=True)
class _Cut:
    """A segment to cut out of a source."""

    media: Path
    header: Header
    segment: Segment
    begin_s: float
    end_s: float


@click.command(cls=Command, no_args_is_help=True)
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path))
@option(
    "-o",
    "--output",
    heading="Output",
    default="clips",
    metavar="FOLDER",
    shell_complete=file_names,
    help="Folder for the clips, their pictures and clips.csv.",
)
@option(
    "--label", heading="Clips", multiple=True, metavar="LABEL", help="Only this label. Repeatable."
)
@option(
    "--before", heading="Clips", default="0", parse=seconds, metavar="TIME", help="Begin earlier."
)
@option("--after", heading="Clips", default="0", parse=seconds, metavar="TIME", help="End later.")
@option(
    "--exact/--no-exact",
    heading="Clips",
    default=False,
    show_default=True,
    help="Encode videos again, which begin and end at the frame; else they are copied from the"
    " keyframe before.",
)
@click.option("--overwrite/--no-overwrite", default=False, help="Replace existing clips.")
@json_option
def command(
    results: tuple[Path, ...],
    output: str,
    label: tuple[str, ...],
    before: float,
    after: float,
    exact: bool,
    overwrite: bool,
    as_json: bool,
) -> int:
    """Cut the segments of results out of their sources.

    RESULTS are .jsonl or .json files of 'detect', 'listen' or 'batch', or folders of them. Videos
    are copied with their sound to .mkv files, without encoding, or with --exact encoded as .mp4;
    sound is written as .wav. Each clip of a video has a picture of the start of its segment.
    clips.csv lists the clips, their segments, and the lengths of the clips as they were read back.

    \b
    costream clips out/clip.mp4.jsonl --label fall --before 2 --after 3
    costream clips results/ -o falls --label fall --exact
    """
    folder = Path(output)
    cuts, problems = _cuts(results, {folded(each) for each in label}, before, after)
    if not cuts and not problems:
        raise UsageError(f"no segment{' with this label' if label else ''} in these results")
    clips: list[WrittenClip] = []
    if cuts:
        clips, failed = _write(cuts, folder, exact=exact, overwrite=overwrite)
        problems += failed
    for line in problems:
        say(f"costream: {line}")
    if as_json:
        print_json([plain(clip) for clip in clips])
    elif clips:
        click.echo(f"{counted(len(clips), 'clip')}: {folder / TABLE}")
    return int(ExitCode.OK if not problems else ExitCode.PARTIAL if clips else ExitCode.INPUT)


def _cuts(
    results: Sequence[Path], labels: set[str], before_s: float, after_s: float
) -> tuple[list[_Cut], list[str]]:
    """Return what is to be cut, and a line for each result whose source cannot be cut."""
    from costream.report.result_files import find_results

    cuts: list[_Cut] = []
    problems: list[str] = []
    for path in (file.path for argument in results for file in find_results(argument)):
        try:
            for header, segment, media in _segments(path, labels):
                begin_s = max(0.0, segment.start_s - before_s)
                cuts.append(_Cut(media, header, segment, begin_s, segment.end_s + after_s))
        except SourceError as error:
            problems.append(str(error))
    return cuts, problems


def _segments(path: Path, labels: set[str]) -> Iterator[tuple[Header, Segment, Path]]:
    """Yield the segments of a result with these labels (all if there are none), and the source."""
    from costream.sinks.result_reader import read_results
    from costream.sinks.result_sources import source_file

    header: Header | None = None
    media: Path | None = None
    for content in read_results(path):
        if isinstance(content, Header):
            header, media = content, None
        wanted = isinstance(content, Segment) and (not labels or folded(content.label) in labels)
        if not wanted or not isinstance(content, Segment):
            continue
        if header is None:
            raise SourceError("the header is missing, so the source is unknown", where=path)
        if header.kind not in ("video", "audio"):
            raise SourceError(f"results of {header.kind}, which has no clips", where=path)
        if header.began is not None:
            hint = "watch --clips saves clips of alerts"
            raise SourceError("results of a live feed, which is over", where=path, hint=hint)
        media = media or source_file(header, path)
        if media is None:
            hint = "put it back, or next to the results"
            raise SourceError(f"the source {header.source} is missing", where=path, hint=hint)
        yield header, content, media


def _write(
    cuts: Sequence[_Cut], folder: Path, *, exact: bool, overwrite: bool
) -> tuple[list[WrittenClip], list[str]]:
    """Write the clips and their table; return the clips, and a line for each failure."""
    from costream.sinks.atomic import check_folder
    from costream.sinks.tables import csv_cell

    check_folder(folder)
    paths = _paths(cuts, folder, exact=exact)
    existing = next((p for p in (folder / TABLE, *paths) if p.exists()), None)
    if existing is not None and not overwrite:
        raise UsageError("exists already", where=existing, hint="use --overwrite, or another -o")
    folder.mkdir(parents=True, exist_ok=True)
    clips: list[WrittenClip] = []
    problems: list[str] = []
    with (folder / TABLE).open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow([column.name for column in fields(WrittenClip)])
        for cut, path in zip(cuts, paths, strict=True):
            at = f"{cut.media.name} at {format_time(cut.segment.start_s)}"
            try:
                clip = _clip(cut, path, exact=exact)
            except CostreamError as error:
                problems.append(f"{at}: {error}")
                continue
            if clip.length_s < cut.end_s - cut.begin_s - _SHORTER_S:
                say(f"costream: {at}: the clip has {clip.length_s:.2f} s, as the source ends then")
            cells = (getattr(clip, column.name) for column in fields(WrittenClip))
            table.writerow(["" if cell is None else csv_cell(cell) for cell in cells])
            clips.append(clip)
    return clips, problems


def _paths(cuts: Sequence[_Cut], folder: Path, *, exact: bool) -> list[Path]:
    """Return a file for each clip: SOURCE_HH-MM-SS.mmm_LABEL, with a number if it is not new."""
    from costream.runtime.cutting import COPIED, EXACT, SOUND
    from costream.sinks.rotation import safe_name

    paths: dict[Path, None] = {}
    for cut in cuts:
        suffix = SOUND if cut.header.kind == "audio" else EXACT if exact else COPIED
        at = format_time(cut.segment.start_s).replace(":", "-")
        stem = f"{safe_name(cut.media.name)}_{at}_{safe_name(cut.segment.label)}"
        path, number = folder / f"{stem}{suffix}", 1
        while path in paths:
            number += 1
            path = folder / f"{stem}~{number}{suffix}"
        paths[path] = None
    return list(paths)


def _clip(cut: _Cut, path: Path, *, exact: bool) -> WrittenClip:
    """Write a clip and its picture; return its row of the table."""
    from costream.runtime.cutting import PICTURE, copy_clip, exact_clip, picture, sound_clip
    from costream.sources.base import SourceOptions

    stream, channel = (cut.header.options.get(name) for name in ("stream", "channel"))
    options = SourceOptions(start_s=cut.begin_s, end_s=cut.end_s, stream=stream, channel=channel)
    shot = None
    if cut.header.kind == "audio":
        begin_s, length = sound_clip(cut.media, path, options)
    else:
        begin_s, length = (exact_clip if exact else copy_clip)(cut.media, path, options)
        shot = path.with_suffix(PICTURE)
        picture(cut.media, shot, SourceOptions(start_s=cut.segment.start_s, stream=stream))
    segment = cut.segment
    return WrittenClip(
        file=path.name,
        picture=None if shot is None else shot.name,
        source=str(cut.media),
        label=segment.label,
        start_s=segment.start_s,
        end_s=segment.end_s,
        score=segment.score,
        model=segment.model or cut.header.model,
        person=segment.person,
        clip_start_s=begin_s,
        clip_end_s=begin_s + length,
        length_s=length,
    )
