"""What is measured of a machine, its operators and its collectives, and the cache of it."""
