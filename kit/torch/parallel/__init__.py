"""Replicas of a torch module on several devices, and what they exchange."""
