"""Several devices: a session each, and what they exchange."""
