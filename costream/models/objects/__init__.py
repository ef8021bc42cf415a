"""Detectors of objects that look at every frame alone."""
