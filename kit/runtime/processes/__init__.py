"""Several processes as one run: who takes part, and the channel between them."""
