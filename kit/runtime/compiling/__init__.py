"""A segment becomes a jax function, an executable, and a reason why it was compiled."""
