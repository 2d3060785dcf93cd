"""PyTorch on device "kit": each call of torch's becomes recorded ops."""
