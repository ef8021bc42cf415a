"""Results read back: pages and pictures to look at, and where two runs differ."""
