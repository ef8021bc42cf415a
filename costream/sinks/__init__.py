"""Sinks: records in, files out. They know nothing of models."""
