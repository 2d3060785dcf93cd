"""The same step without kit, as baseline: torch itself, or jax.jit."""
