"""Sources: a URI in, time-stamped items out. They know nothing of models."""
