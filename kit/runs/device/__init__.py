"""What the device did: the arithmetic and bytes of ops, and what launched its kernels."""
