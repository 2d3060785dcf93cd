"""`python -m kit.gpu_check`: what the kit does on a GPU, in minutes, as numbers with targets."""
