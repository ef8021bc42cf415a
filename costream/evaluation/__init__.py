"""Metrics of the field and the protocols they are computed by."""
