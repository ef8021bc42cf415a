"""Frames of a pipeline as they come: python gstreamer.py 'rtspsrc location=... ! decodebin'."""

import sys

import gi
import numpy as np

import costream

gi.require_version("Gst", "1.0")
gi.require_version("GstApp", "1.0")
from gi.repository import Gst, GstApp  # noqa: E402, F401

Gst.init(None)
tail = "videoconvert ! videoscale ! video/x-raw,format=RGB,width=640,height=480 ! appsink name=out"
pipeline = Gst.parse_launch(f"{sys.argv[1]} ! {tail} sync=false max-buffers=4")
sink = pipeline.get_by_name("out")
pipeline.set_state(Gst.State.PLAYING)
with costream.load_model("auto").stream() as stream:
    while (sample := sink.pull_sample()) is not None:  # None: the end
        buffer = sample.get_buffer()
        frame = np.frombuffer(buffer.extract_dup(0, buffer.get_size()), np.uint8)
        for record in stream.step(frame.reshape(480, 640, 3), buffer.pts / Gst.SECOND):
            if record.type == "segment":
                print(record, flush=True)
    print(*stream.finish(), sep="\n")  # what had not ended
pipeline.set_state(Gst.State.NULL)
