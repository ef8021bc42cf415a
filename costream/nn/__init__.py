"""Continual building blocks: pure torch, no I/O. Modules hold weights, streams hold state."""
