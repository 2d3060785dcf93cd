"""The timeline on a canvas."""
