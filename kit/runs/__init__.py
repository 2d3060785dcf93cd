"""A measured run as frozen data: its settings, what it holds, and its file on disk."""
