"""Measurements of a machine, its operators and its collectives, and their cache."""
