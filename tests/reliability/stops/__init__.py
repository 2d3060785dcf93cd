"""What goes on, and what is left behind, when a user or an error stops the kit amid its work."""
