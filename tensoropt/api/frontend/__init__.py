"""The front end: imports a TensorFlow graph as a logical graph."""
