"""``tensoropt.keras.scope``: Keras models that are built without storage for their large weights."""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterator

from tensoropt.api.session.job import Job, current_job

__all__ = ["scope"]


@contextlib.contextmanager
def scope() -> Iterator[None]:
    """Builds Keras models whose large weights get their values when devices need them; collective under ``mpirun``.

    ``with tensoropt.keras.scope(): model = …`` has variables of more than a mebibyte made without storage. When the
    first step of :func:`parallelize` is planned, they are made one after another, and each rank keeps its pieces, so
    that a model may be larger than a rank's memory. Asked for before that, a variable gets its whole value.

    The values are those that the initializers give without a scope. They are large variables' of constants and of
    Keras's initializers with seeds that are numbers (as by default); others are made at once. Where ranks' random
    numbers in Python differ, as they do without ``keras.utils.set_random_seed``, initializers draw their seeds from
    ones that are alike meanwhile.

    Raises:
        CollectiveError: if ranks do not enter it together.
    """
    from tensoropt.api.functions.lazy_variables import made_later

    job = current_job()
    job.start_once()
    with _alike(job), made_later():
        yield


@contextlib.contextmanager
def _alike(job: Job) -> Iterator[None]:
    """Random numbers in Python that are the same on all ranks, from which initializers draw their seeds."""
    before = random.getstate()
    job.world.require_member("tensoropt.keras.scope")
    if not job.world.are_several:
        yield
        return
    job.world.meet("tensoropt.keras.scope")
    states = job.world.comm.allgather(hashlib.sha256(repr(before).encode()).digest())
    if len(set(states)) == 1:
        yield
        return
    random.seed(job.world.draw_seed())
    try:
        yield
    finally:
        random.setstate(before)
