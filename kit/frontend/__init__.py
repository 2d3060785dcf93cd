"""Front ends: what a user's program does becomes recorded ops. The torch half knows no jax."""
