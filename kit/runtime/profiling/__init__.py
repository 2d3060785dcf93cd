"""Spans of the host and of the device, on one clock."""
