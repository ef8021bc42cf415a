"""Dashboard of a watch over several feeds."""
