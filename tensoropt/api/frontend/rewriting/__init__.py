"""From a user's graph to one without functions: calls inlined, branches chosen by selects, loops unrolled."""
