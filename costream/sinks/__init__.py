"""Sinks: write records to files. They are independent of models."""
