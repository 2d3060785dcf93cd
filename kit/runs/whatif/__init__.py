"""What a run would cost under other settings: a model made of the run's own costs."""
