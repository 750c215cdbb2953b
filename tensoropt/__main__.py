"""``python -m tensoropt``: the command ``tensoropt`` of this Python."""

from __future__ import annotations

from tensoropt.cli.main import main

if __name__ == "__main__":
    main()
