"""Search spaces: the tables of a graph's strategies, deciding operators and followers, and a strategy's needs."""
