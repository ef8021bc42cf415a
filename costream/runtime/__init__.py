"""Runs: the only package that imports sources, models and sinks."""
