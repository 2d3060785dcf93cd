"""Several devices: a session each, and the collectives between them."""
