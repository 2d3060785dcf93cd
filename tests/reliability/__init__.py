"""What goes wrong around a step, from seeded generators, and whether all places say the same."""
