"""Media files: containers, decoders and clocks."""
