"""Traces of several ranks: what each did, on one clock, and who kept the others waiting."""
