"""What can be read off a run: costs by line, kernel, segment and node; memory, diffs."""
