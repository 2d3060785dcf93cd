"""Tensors of device "kit": buffers, views, and the session as they see it."""
