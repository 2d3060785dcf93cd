"""Traces of other profilers in, and a run out to other programs' formats."""
