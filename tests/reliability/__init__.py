"""Seeded generators of what goes wrong around a step: interrupts, errors, torn files."""
