"""The command line: `kit run`, `kit view`, `kit report`, `kit lab` and the others."""
