"""Files of hosts: a host a line with the number of its ranks, as Open MPI (``a slots=4``) or MPICH (``a:4``) has it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from tensoropt.cli.output import UsageError
from tensoropt.storage import read_regular
from tensoropt.storage.document import cause_of, quoted

__all__ = ["Host", "read_hosts"]

_LINE = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)(?::(?P<count>\d+)|\s+slots\s*=\s*(?P<slots>\d+)(?:\s+\S+=\S+)*)?")


@dataclass(frozen=True, slots=True)
class Host:
    """A host of a job.

    Attributes:
        name: of it.
        slots: how many ranks it takes.
    """

    name: str
    slots: int

    def __str__(self) -> str:
        return f"{self.name}:{self.slots}"

    @property
    def is_here(self) -> bool:
        """True if the host is this machine, by its name."""
        return self.name in ("localhost", "127.0.0.1", os.uname().nodename)


def read_hosts(path: Path, ranks: int) -> tuple[Host, ...]:
    """The hosts of a file. Those without a number share the ranks evenly.

    Raises:
        UsageError: the file cannot be read, has a line that is no host, one host twice, or room for too few ranks.
    """
    try:
        text = read_regular(path, most_bytes=2**20).decode("utf-8")
    except OSError as error:
        raise UsageError(f"--hosts: '{path}' cannot be read: {cause_of(error)}. Give a file of hosts.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--hosts: '{path}' must be text. Give a file with a host a line.") from error
    lines = [(number, line.partition("#")[0].strip()) for number, line in enumerate(text.splitlines(), 1)]
    found: dict[str, int | None] = {}
    for number, line in lines:
        if not line:
            continue
        match = _LINE.fullmatch(line)
        if match is None or match["name"] in found:
            wrong = "stands there before" if match is not None else "is no host"
            raise UsageError(
                f"--hosts: '{path}', line {number}: {quoted(line)} {wrong}. Write each host once: 'name slots=4', "
                "'name:4' or 'name'."
            )
        count = match["count"] or match["slots"]
        found[match["name"]] = None if count is None else int(count)
    if not found or 0 in found.values():
        raise UsageError(f"--hosts: '{path}' must have hosts with a rank or more. Write 'name slots=4', one a line.")
    hosts = tuple(Host(name, -(-ranks // len(found)) if count is None else count) for name, count in found.items())
    room = sum(host.slots for host in hosts)
    if room < ranks:
        raise UsageError(
            f"--hosts: '{path}' has room for {room} ranks, and -n {ranks} asks for more. Raise its slots, or start "
            f"{room} ranks."
        )
    return hosts
