"""Who holds memory, and when."""
