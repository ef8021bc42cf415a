"""The Python API: runs as iterators of records, streams of frames, results."""
