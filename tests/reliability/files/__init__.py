"""Files that are damaged, half written, of another system, or on a disk that is full."""
