"""Pictures of plain arrays. matplotlib is loaded when one is drawn, and never its global state (``pyplot``)."""
