"""``costream batch``: resumable runs over many files, on one machine or a cluster."""
