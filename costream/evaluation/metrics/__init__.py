"""Metrics: frames, segments, sequences, detection, calibration."""
