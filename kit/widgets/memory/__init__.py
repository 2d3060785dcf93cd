"""Which values hold memory, and when."""
