"""Lowering rules: op name -> a function of jax, in tables that are values."""
