"""Whether Markov chains find the best of all strategies: branch and bound, and a comparison with it."""
