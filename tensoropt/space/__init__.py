"""From a graph to tables: the space of its strategies, what decides and what follows, and what a strategy needs."""
