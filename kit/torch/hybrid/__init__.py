"""A Python loop over tensors as one op, and such loops ready made."""
