"""Tests in a real page: one process has them all, with one JupyterLab and one Chromium."""
