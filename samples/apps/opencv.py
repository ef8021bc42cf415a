"""Boxes on the pictures of a camera or video: python opencv.py [SOURCE] [OUTPUT.mp4]."""

import sys

import cv2

import costream

source = sys.argv[1] if len(sys.argv) > 1 else "0"
film = cv2.VideoCapture(int(source) if source.isdecimal() else source)
rate = film.get(cv2.CAP_PROP_FPS) or 25
writer, boxes = None, ()
with costream.load_model("auto").stream(rate_hz=rate) as stream:
    while True:
        there, picture = film.read()  # BGR
        if not there:
            break
        for record in stream.step(cv2.cvtColor(picture, cv2.COLOR_BGR2RGB)):
            if record.type == "objects":
                boxes = [box for box in record.boxes if box.score >= 0.45]
            elif record.type == "segment":
                print(record)
        for box in boxes:
            corners = (round(box.x1), round(box.y1)), (round(box.x2), round(box.y2))
            cv2.rectangle(picture, *corners, (0, 160, 255), 2)
            cv2.putText(
                picture, box.label, corners[0], cv2.FONT_HERSHEY_SIMPLEX, 0.6, (0, 160, 255)
            )
        if len(sys.argv) > 2:
            size = picture.shape[1::-1]
            writer = writer or cv2.VideoWriter(
                sys.argv[2], cv2.VideoWriter.fourcc(*"mp4v"), rate, size
            )
            writer.write(picture)
        elif cv2.imshow("costream", picture) or cv2.waitKey(1) == 27:  # Esc
            break
    print(*stream.finish(), sep="\n")  # what had not ended
if writer is not None:
    writer.release()
