"""``costream batch``: every file below a folder, resumable, on one machine or many."""
