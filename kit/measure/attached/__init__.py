"""A training loop that exists: some of its steps are recorded while it runs as it is."""
