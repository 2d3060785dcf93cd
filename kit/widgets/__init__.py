"""Views of a run: pure functions make columns, thin classes hold traits. No jax, no torch."""
