"""Agreement of ranks on the parts that each makes by itself: operators with constants and seeds, and initial values."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tensoropt.api.frontend.imported_model import ImportedModel
from tensoropt.api.frontend.initializers import initializers
from tensoropt.api.frontend.walks import reached
from tensoropt.errors import CollectiveError
from tensoropt.exec.engines.ranks import written_holders
from tensoropt.graph.graph import Graph

__all__ = ["ValueDigests", "agree_on_nodes"]

_SHOWN_NUMBERS = 3
_REMEDY = (
    "Run the same program with the same arguments everywhere, seed NumPy's and Python's random numbers alike, give "
    "every rank the same seed=, or"
)


def agree_on_nodes(comm: Any, imported: ImportedModel) -> None:
    """Compares the operators of a model and of its initializers, with attributes, constants and seeds; collective.

    What a graph holds is compared, so nothing is computed for it. Graphs of other operators are left to the comparison
    of fingerprints.

    Args:
        comm: an mpi4py communicator, or anything with its ``allgather``.
        imported: this rank's model.

    Raises:
        CollectiveError: on all ranks, naming the variable or the operator, and the ranks.
    """
    nodes = {node.name: node for node in imported.tf_graph.as_graph_def().node}
    initial = {name: op.inputs[1].op.name for name, op in initializers(imported.tf_graph).items()}
    of_variable = {name: _needed(nodes, [value]) for name, value in initial.items() if name in imported.graph}
    needed = _needed(nodes, (op.name for op in imported.graph.operators)).union(*of_variable.values())
    differing = _differing(comm, {name: _digest(_numbers(nodes[name])) for name in sorted(needed)})
    if not differing:
        return
    # A variable, and then what one begins with, says most; gradients and updates only follow.
    own = [(name, None) for name in differing if name in initial]
    made = [(name, variable) for name in differing for variable, those in of_variable.items() if name in those]
    name, variable = next(iter([*own, *made]), (differing[0], None))
    holders = written_holders(comm.allgather(_described(nodes[name])))
    subject = (
        f"{imported.graph[variable]}: what its initial value is made of ({nodes[name].op} '{name}')"
        if variable is not None
        else f"{imported.graph[name] if name in imported.graph else f'{nodes[name].op} {name!r}'}: its attributes"
    )
    raise CollectiveError(
        f"{subject} must be the same on all {comm.size} ranks, or each trains another model. Got {holders}. {_REMEDY} "
        "take what is random from rank 0."
    )


class ValueDigests:
    """Hashes of the initial values that this rank gives to variables."""

    def __init__(self, values: Callable[[str], np.ndarray]) -> None:
        """Takes what makes the values."""
        self._values = values
        self._digests: dict[str, bytes] = {}

    def __call__(self, name: str) -> np.ndarray:
        """The value of a variable, which is noted."""
        value = np.asarray(self._values(name))
        self._digests[name] = _digest(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
        return value

    def agree(self, comm: Any, graph: Graph) -> None:
        """Compares them; collective.

        Raises:
            CollectiveError: on all ranks, naming the first variable whose values differ, and the ranks.
        """
        differing = _differing(comm, self._digests)
        if not differing:
            return
        holders = written_holders(comm.allgather(self._digests[differing[0]].hex()[:8]))
        more = f" (and {len(differing) - 1} more variables)" if len(differing) > 1 else ""
        raise CollectiveError(
            f"{graph[differing[0]]}{more}: its initial value must be the same on all {comm.size} ranks, or each trains "
            f"another model. Got the hashes {holders}. {_REMEDY} let initializers draw nothing outside of TensorFlow."
        )


def _differing(comm: Any, digests: Mapping[str, bytes]) -> list[str]:
    """Names whose digests differ, sorted; none if ranks have other names. Collective."""
    whole = hashlib.sha256(repr(sorted(digests.items())).encode()).digest()
    if len(set(comm.allgather(whole))) == 1:
        return []
    ranks = comm.allgather(dict(digests))
    if any(rank.keys() != ranks[0].keys() for rank in ranks):
        return []
    return sorted(name for name in ranks[0] if len({rank[name] for rank in ranks}) > 1)


def _described(node: Any) -> str:
    """Describes briefly the parts of a node that may differ between ranks."""
    digest = _digest(_numbers(node)).hex()[:8]
    if "value" in node.attr:  # a constant
        value = tf.make_ndarray(node.attr["value"].tensor)
        numbers = ", ".join(str(number) for number in value.reshape(-1)[:_SHOWN_NUMBERS])
        # Those that differ may come later, so there is a hash as well.
        return f"[{numbers}{', …' if value.size > _SHOWN_NUMBERS else ''}] (hash {digest})"
    seeds = [f"{key}={node.attr[key].i}" for key in ("seed", "seed2") if key in node.attr]
    shape = [f"shape={tf.TensorShape(node.attr['shape'].shape)}"] if "shape" in node.attr else []
    return " ".join([*seeds, *shape]) or f"attributes with the hash {digest}"


def _numbers(node: Any) -> bytes:
    """A node's attributes but for texts and functions.

    These have names that count what the process has made before (the functions that Python ops call), which may be more
    on rank 0. Of what decides numbers they hold what the fingerprint of a graph compares.
    """
    attributes = [(key, value) for key, value in node.attr.items() if value.WhichOneof("value") not in ("s", "func")]
    attributes.sort(key=lambda item: item[0])
    return b"".join(key.encode() + value.SerializeToString(deterministic=True) for key, value in attributes)


def _digest(data: Any) -> bytes:
    return hashlib.blake2b(data, digest_size=8).digest()


def _needed(nodes: Mapping[str, Any], names: Iterable[str]) -> set[str]:
    """Nodes that some nodes are computed from, and these."""

    def operands(name: str) -> list[str]:
        given = (operand.removeprefix("^").split(":")[0] for operand in nodes[name].input)
        return [operand for operand in given if operand in nodes]

    return set(reached((name for name in names if name in nodes), operands))
