"""A run as one file: written, read, and what is checked of it both times."""
