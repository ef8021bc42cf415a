"""Models of online action detection and audio tagging."""
