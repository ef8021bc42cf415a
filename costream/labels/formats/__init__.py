"""Label file formats, one family a file."""
