"""Rewrites a user's graph without functions: calls inlined, branches turned into selects, loops unrolled."""
