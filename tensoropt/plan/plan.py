"""A strategy with its reshard paths: all that the devices need to run, as a value and as a JSON file."""
