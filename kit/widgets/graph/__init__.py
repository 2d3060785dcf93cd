"""The graph of a step: tree, layout, picture."""
