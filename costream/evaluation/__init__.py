"""Evaluation metrics and protocols."""
