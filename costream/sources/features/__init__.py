"""Precomputed features: arrays, archives and pickles."""
