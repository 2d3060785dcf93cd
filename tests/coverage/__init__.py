"""torch's own op, module and optimizer tables, run on device kit and compared with its CPU."""
