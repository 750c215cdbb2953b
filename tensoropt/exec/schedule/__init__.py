"""In which order a program works: what waits for what, and what TensorFlow may merge."""
