"""From a TensorFlow graph to a logical graph."""
