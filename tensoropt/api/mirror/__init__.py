"""The mirror of TensorFlow: calls of a script make ops in a private graph."""
