"""What a run's numbers mean, in words: its limit, the advice that answers it, and the summary."""
