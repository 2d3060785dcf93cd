"""Many runs of one workload: sweeps, tuning, rounds, and what to compile ahead."""
