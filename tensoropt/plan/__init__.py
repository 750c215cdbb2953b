"""Configurations of operators, strategies of whole graphs, and plans that are ready to run."""
