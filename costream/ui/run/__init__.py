"""Live view of a single run."""
