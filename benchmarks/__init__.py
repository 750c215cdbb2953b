"""Measurements, each a command of its own: ``python -m benchmarks.<name>``."""
