"""What a builder is given, batches, and the loop that times steps."""
