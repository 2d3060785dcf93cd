"""The dependency engine: functions that read and write variables, and nothing else."""
