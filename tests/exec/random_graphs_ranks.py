"""Random models under random plans on real ranks, against one process; started by ``test_random_graphs.py``.

Arguments: the first seed, how many, and ``one_op`` for groups of models of one op each. Prints what differs, for each
seed that does, and ends with an error then.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import tensorflow as tf

from tensoropt.exec.engines.launch import agree, install_abort_hook, start_mpi
from tensoropt.exec.engines.mpi_engine import MpiEngine
from tensoropt.exec.program.replicas import copies_apart
from tests.exec.one_op_models import build_group
from tests.exec.random_models import build_model
from tests.exec.random_runs import (
    differences,
    first_difference,
    make_case,
    real_session,
    reference_outcome,
    small_session,
    train,
)
from tests.races import no_races

# One graph of so many runs as jobs do, which takes longer.
_REAL = 4


@no_races()
def main() -> None:
    first, count = int(sys.argv[1]), int(sys.argv[2])
    build = build_group if sys.argv[3:] == ["one_op"] else build_model
    comm = start_mpi()
    install_abort_hook(comm)
    tf.config.experimental.enable_tensor_float_32_execution(False)  # where products on cards round more
    engine = None
    failed: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        for start in range(first, first + count, comm.size):
            seeds = range(start, min(start + comm.size, first + count))
            cases = [make_case(seed, comm.size, Path(folder), build=build) for seed in seeds]
            runs = []
            for case in cases:
                seed = case.model.seed
                agree(comm, f"graph of seed {seed}", case.imported.graph.fingerprint())
                agree(comm, f"plan of seed {seed}", repr(case.plan.to_json()))
                engine = engine or MpiEngine(case.plan.mesh.shape)
                config = small_session() if seed % _REAL else real_session()
                agreeing = {"agree": lambda what, value: agree(comm, what, value), "gather": comm.allgather}
                found = train(case, engine, config=config, **agreeing)
                runs.append((case, engine, config, found))
            # Each rank has one to run alone, so that none waits.
            mine = reference_outcome(cases[comm.rank], runs[comm.rank][-1]) if comm.rank < len(cases) else None
            for (case, engine, config, found), wanted in zip(runs, comm.allgather(mine), strict=False):
                seed = case.model.seed
                everyone = comm.allgather(found.stored)
                wrong = comm.allgather(differences(case, found, wanted) + copies_apart(everyone))
                if any(wrong):
                    failed.append(seed)
                    where = first_difference(case, engine, config)
                    if comm.rank == 0:
                        lines = [f"  rank {rank}: {'; '.join(what[:4])}" for rank, what in enumerate(wrong) if what]
                        print("\n".join([f"seed {seed}:", *lines, where]), flush=True)
    if comm.rank == 0:
        print(f"{count} graphs on {comm.size} ranks, {len(failed)} differ")
    if failed:
        raise SystemExit(f"seeds {failed} differ from one process")


if __name__ == "__main__":
    main()
