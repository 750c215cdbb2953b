"""A job: what a script calls, and what all ranks do together."""
