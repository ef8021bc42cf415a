"""Benchmarks that users can repeat on their machine: steps, operation counts, runs."""
