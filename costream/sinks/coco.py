"""Boxes as COCO JSON, for annotation tools and for training.

Boxes are written as they arrive, in constant memory; the images, which are fewer, at the end.
"""

from __future__ import annotations

from pathlib import Path

from costream.core.records import (
    IMAGE_SUFFIXES,
    Header,
    Objects,
    Picture,
    Record,
    Summary,
    VideoFrame,
    dumps,
    plain,
)
from costream.sinks.atomic import Spool, TextOutput
from costream.sinks.base import TextSink, output_file


@output_file("coco.json", format="coco", about="boxes as COCO JSON", objects=True, order=10)
class Coco(TextSink):
    """COCO JSON: ``info, categories, annotations, videos, images``; one image per frame used.

    Frame 12 of a video is named ``frame_000012.PNG``, as in CVAT. A still image has the name of
    its file, and there are no videos then. Two steps on the same frame are one image, with the
    boxes of the first.
    """

    def __init__(self, out: TextOutput) -> None:
        super().__init__(out)
        self._source = ""
        self._categories: dict[str, int] = {}  # label -> id
        self._objects: Objects | None = None  # of the current step, until its picture arrives
        self._images = Spool()  # one line per image: frame, width, height
        self._frame: int | None = None  # of the newest image
        self._image = self._box = 0  # number so far, which is the id of the newest

    def open(self, header: Header) -> None:
        """Write everything up to the first box."""
        super().open(header)
        self._source = Path(header.source).name
        self._categories = {label: k for k, label in enumerate(header.labels, 1)}
        info = {
            "description": f"costream {header.version}",
            "model": header.model,
            "weights_sha256": header.weights_sha256,
        }
        rows = [
            {"id": k, "name": label, "supercategory": ""} for label, k in self._categories.items()
        ]
        text = f'{{\n"info": {dumps(info)},\n"categories": {dumps(rows)},\n"annotations": ['
        self._out.write(text, flush=True)

    def write(self, record: Record) -> None:
        """Store the boxes of a step until its picture arrives."""
        if isinstance(record, Objects):
            self._objects = record

    def draw(self, picture: Picture) -> None:
        """Write the boxes of a picture. Its pixels are read only if its size is unknown."""
        objects, item = self._objects, picture.item
        self._objects = None
        if objects is None or not isinstance(item, VideoFrame) or objects.frame == self._frame:
            return
        width, height = item.size or item.rgb.shape[1::-1]
        self._images.add(f"{objects.frame} {width} {height}\n")
        self._frame = objects.frame
        self._image += 1
        for box in objects.boxes:
            self._box += 1
            size = (box.x2 - box.x1, box.y2 - box.y1)
            row = {
                "id": self._box,
                "image_id": self._image,
                "category_id": self._categories[box.label],
                "bbox": (box.x1, box.y1, *size),
                "area": size[0] * size[1],
                "segmentation": (),  # CVAT rejects boxes without it
                "iscrowd": 0,
                "score": box.score,
                **({} if box.id is None else {"track_id": box.id}),
            }
            self._out.write(("\n" if self._box == 1 else ",\n") + dumps(plain(row)))

    def close(self, summary: Summary) -> None:
        """Write the video and the images, and finish."""
        self._out.write("\n]" if self._box else "]")
        is_picture = self._image < 2 and self._source.lower().endswith(IMAGE_SUFFIXES)
        if not is_picture:
            video = {"id": 1, "name": self._source, "file_name": self._source}
            self._out.write(f',\n"videos": [{dumps(video)}]')
        self._out.write(',\n"images": [')
        for number, line in enumerate(self._images.lines(), 1):
            frame, width, height = map(int, line.split())
            name = self._source if is_picture else f"frame_{frame:06d}.PNG"
            row = {"id": number, "file_name": name, "width": width, "height": height}
            place = {} if is_picture else {"video_id": 1, "frame_id": frame}
            self._out.write(("\n" if number == 1 else ",\n") + dumps({**row, **place}))
        self._images.close()
        self._out.write("\n]\n}\n" if self._image else "]\n}\n")
        super().close(summary)
