"""Ops, values and bulks: what one thread records, and when a bulk ends."""
