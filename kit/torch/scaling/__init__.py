"""Gradient scalers, one for each mode of loss scaling."""
