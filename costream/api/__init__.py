"""The Python API: runs as iterators of records, streams of one's own, results."""
