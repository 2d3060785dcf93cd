"""Record ops, cut them into segments, lower those to XLA, run them, note when: jax, no torch."""
