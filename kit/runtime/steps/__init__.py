"""A step once more: retraced, replayed without its Python, or issued while it is recorded."""
