"""``costream detect``: detect actions in video, skeletons or features, or objects in video."""

from __future__ import annotations

from costream.cli.run_command import run_command
from costream.core.errors import ExitCode
from costream.options.options import Options


@run_command("detect", "SOURCE...")
def command(options: Options, effective: list[str]) -> ExitCode:
    """Detect actions in video, skeletons or features, or objects in video, step by step.

    SOURCE is one of:

    \b
    - a video file, or the http URL of one
    - skeletons: a table (.csv), motion capture (.c3d, .trc, .mot, .bvh), Kinect
      (.skeleton), pose estimators (.csv, .h5, .json, .pkl, or a folder of
      OpenPose keypoints); see 'costream help skeletons'
    - features: .npy, .npz or a THUMOS-style pickle (FILE.pickle#NAME: one video)
    - '-' for stdin

    Without -o a readable timeline is printed. With -o results go to files, or all segments to one
    table (-o all.csv). -f jsonl prints records for other programs.

    \b
    costream detect clip.mp4
    costream detect *.mp4 -o out -f jsonl,csv,srt
    costream detect *.mp4 -o all.csv --only 'fall,lie'
    costream detect clip.mp4 | less
    cat clip.ts | costream detect - -f jsonl | jq 'select(.type == "segment")'
    costream detect poses.csv -m costgcn --fps 30
    costream detect walk.c3d -m costgcn
    costream detect street.mp4 -m eventful-vitdet --budget 60ms --track -o out
    """
    from costream.runtime.detect import detect

    return detect(options, effective)
