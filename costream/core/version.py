"""The number of the release; ``commit`` names the code more closely."""

__version__ = "0.1.0"
