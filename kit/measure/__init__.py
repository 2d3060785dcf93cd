"""A workload under settings becomes a measured run."""
