"""Readers of result files written by earlier runs."""
