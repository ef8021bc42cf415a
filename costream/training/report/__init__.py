"""Training reports."""
