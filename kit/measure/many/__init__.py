"""A workload on several devices, in one process or in several."""
