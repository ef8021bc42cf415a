"""Reports on results: HTML pages, images and comparisons of two runs."""
