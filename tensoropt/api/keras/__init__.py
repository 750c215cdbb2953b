"""Keras models whose ``fit`` runs on all ranks by a plan."""
