"""Sources: turn a URI into time-stamped items, independently of models."""
