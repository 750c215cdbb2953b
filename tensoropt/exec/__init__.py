"""Execution: the local TensorFlow graph of each rank, its collectives, and the session that runs it."""
