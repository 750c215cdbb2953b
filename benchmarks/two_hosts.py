"""Two hosts on one machine: network namespaces with names of their own, joined by a slow link."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.launch import mpirun_path

__all__ = ["bits_per_s", "two_hosts", "why_no_hosts"]

# What mpirun calls instead of ssh, as ``agent [options] ADDRESS COMMAND…``.
_AGENT = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
case $1 in {cases} esac
shift
exec ip netns exec $name unshare --uts sh -c "hostname $name; $*"
"""
_UNITS = {"mbit": 1e6, "gbit": 1e9}
# A link's bucket holds what it carries in so long, but a packet at least: one that fills up sooner than a timer comes
# makes the link slower than its rate.
_BUCKET_S, _LEAST_BUCKET_BYTES = 1e-3, 4096


def bits_per_s(rate: str) -> float:
    """A rate of a link such as ``100mbit``, as a number.

    Raises:
        ValueError: it is none.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([mg]bit)", rate)
    if found is None or not float(found[1]):
        raise ValueError(f"a rate must be like 100mbit or 2.5gbit, got {rate!r}")
    return float(found[1]) * _UNITS[found[2]]


@functools.cache
def why_no_hosts() -> str:
    """Why this process cannot make hosts; nothing if it can."""
    if os.geteuid() != 0:
        return "only root makes network namespaces"
    missing = [name for name in ("ip", "tc", "unshare", "mpirun") if _path(name) is None]
    if missing:
        return f"no {', '.join(missing)} on PATH"
    names = _names("try")
    try:
        with _linked(names, "100mbit"):
            _run("unshare", "--uts", "hostname", names[0])
    except subprocess.CalledProcessError as error:
        return f"{shlex.join(error.cmd)}: {error.stderr.strip()}"
    return ""


@contextlib.contextmanager
def two_hosts(folder: Path, ranks_per_host: int, *, rate: str = "100mbit") -> Iterator[list[str]]:
    """Makes two hosts for a block, and ends what runs on them after it.

    Args:
        folder: for what this writes.
        ranks_per_host: of a job.
        rate: of the link between them in each direction, see :func:`bits_per_s`.

    Yields:
        The command to start a job on them, without its program: see ``launcher`` of ``run_mpi``.
    """
    names = _names("host")
    agent = folder / "agent.sh"
    cases = " ".join(f"{address}) name={name};;" for name, address in zip(names, _ADDRESSES, strict=True))
    agent.write_text(_AGENT.format(cases=cases), encoding="utf-8")
    agent.chmod(0o700)
    options = {
        "--prtemca plm_ssh_agent": str(agent),
        "--prtemca plm_ssh_no_tree_spawn": "1",
        "--prtemca prte_keep_fqdn_hostnames": "1",  # an address is no name with a domain
        "--mca btl_tcp_if_include": _NETWORK,
        "--host": ",".join(f"{address}:{ranks_per_host}" for address in _ADDRESSES),
        "--map-by": f"ppr:{ranks_per_host}:node:oversubscribe",
        "-n": str(2 * ranks_per_host),
    }
    words = [word for option, value in options.items() for word in (*option.split(), value)]
    inner = f'hostname {names[0]}; exec {shlex.join([str(_path("mpirun")), *words])} "$@"'
    with _linked(names, rate):
        yield ["ip", "netns", "exec", names[0], "unshare", "--uts", "sh", "-c", inner, "sh"]


_NETWORK, _ADDRESSES = "10.99.0.0/24", ("10.99.0.1", "10.99.0.2")


def _names(what: str) -> tuple[str, str]:
    return f"to{os.getpid()}{what}a", f"to{os.getpid()}{what}b"


@contextlib.contextmanager
def _linked(names: Sequence[str], rate: str) -> Iterator[None]:
    """Two namespaces that reach each other and nobody else."""
    try:
        for name in names:
            _run("ip", "netns", "add", name)
        ends = [["eth0", "netns", name] for name in names]
        _run("ip", "link", "add", *ends[0], "type", "veth", "peer", "name", *ends[1])
        for name, address in zip(names, _ADDRESSES, strict=True):
            _run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _run("ip", "-n", name, "link", "set", device, "up")
            bucket_bytes = max(bits_per_s(rate) / 8 * _BUCKET_S, _LEAST_BUCKET_BYTES)
            limit = ["tbf", "rate", rate, "burst", f"{bucket_bytes:.0f}b", "latency", "400ms"]
            _run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "eth0", "root", *limit)
        yield
    finally:
        existing = _run("ip", "netns", "list").split()
        for name in names:
            if name in existing:
                for pid in _run("ip", "netns", "pids", name).split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
                _run("ip", "netns", "delete", name)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout


def _path(program: str) -> str | None:
    return mpirun_path() if program == "mpirun" else shutil.which(program)
