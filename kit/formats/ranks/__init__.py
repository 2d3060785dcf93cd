"""The traces of the ranks of one job: found in a folder, read side by side."""
