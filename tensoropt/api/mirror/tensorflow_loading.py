"""The import of TensorFlow, without what TensorFlow's libraries write while they are loaded.

Their lines of level I and W come once from each library and each rank. Some are written by constructors of the
libraries, before TF_CPP_MIN_LOG_LEVEL is looked at, so that only a pipe in the place of standard error can stop them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tensoropt.exec.engines.graphics_cards import has_driver, take_card
from tensoropt.logs import log_level
from tensoropt.stages import announce, came_to, stage

__all__ = ["declared_names", "load_tensorflow"]

_log = logging.getLogger("tensoropt")
_LEVEL_VARIABLE = "TF_CPP_MIN_LOG_LEVEL"
_EVERYTHING = "0"
_NO_WARNINGS, _NO_ERRORS = "2", "3"

_LOADED = b"tensoropt has loaded TensorFlow\n"
# A process of its own, since a crash of this one must not take the last words with it. Whatever is no line of the
# levels I and W comes out at once; those do, too, if the import fails.
_STRAINER = f"""
import re, sys
held, noise = [], re.compile(rb"[IW]\\d{{4}} |WARNING: All log messages before absl|To enable the following instr")
for line in sys.stdin.buffer:
    if line.endswith({_LOADED!r}):
        held.clear()
        line = line[:-{len(_LOADED)}]
    if noise.match(line):
        held.append(line)
    else:
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()
sys.stderr.buffer.write(b"".join(held))
"""
_STRAINER_PATIENCE_S = 5.0

# A line of the files that TensorFlow's build writes, one for each public name.
_DECLARED = re.compile(r"^from [\w.]+ import (?:\w+ as )?(\w+)", re.M)


def declared_names(path: str, *, version_1_only: bool) -> set[str]:
    """Public names of ``tf.compat.v1.<path>`` and ``tf.<path>``, by TensorFlow's files: nothing is loaded.

    Args:
        path: the namespace, dotted; empty for TensorFlow itself.
        version_1_only: whether ``tf.<path>`` does not count.
    """
    found: set[str] = set()
    spec = importlib.util.find_spec("tensorflow")
    for root in spec.submodule_search_locations or () if spec is not None else ():
        below = path.replace(".", "/")
        files = [f"_api/v2/compat/v1/{below}/__init__.py"]
        if not version_1_only:
            files.append(f"_api/v2/{below}/__init__.py" if path else "__init__.py")
        for file in files:
            with contextlib.suppress(FileNotFoundError):  # a namespace that the other version has alone
                found.update(_DECLARED.findall((Path(root) / file).read_text(encoding="utf-8")))
    return {name for name in found if not name.startswith("_")}


def load_tensorflow() -> None:
    """Imports TensorFlow, if nobody has yet: quietly, unless TENSOROPT_LOG or TF_CPP_MIN_LOG_LEVEL want its log.

    The environment is afterwards what it was; libraries have read it by then. So is Python's own generator of random
    numbers, from which libraries draw as they are loaded: a script that seeds it and then uses tensoropt for the first
    time draws what a script draws that seeds it after ``import tensorflow``.

    Raises:
        SessionError: TENSOROPT_LOG is no level.
        ImportError: there is no TensorFlow, or it cannot be loaded.
    """
    take_card()
    if "tensorflow" in sys.modules:
        return
    announce("loading TensorFlow")  # while a library is loaded nothing else runs in this process
    with stage("loading"), _random_numbers_of_the_script():
        given = os.environ.get(_LEVEL_VARIABLE) or None
        if log_level() <= logging.DEBUG or given == _EVERYTHING:
            import tensorflow as tf
        else:
            try:
                if given is None:
                    # Without a driver, TensorFlow calls that an error; with one, what it calls an error may be the
                    # reason why the card is not used.
                    os.environ[_LEVEL_VARIABLE] = _NO_WARNINGS if has_driver() else _NO_ERRORS
                with _strained_stderr():
                    import tensorflow as tf
            finally:
                if given is None:
                    os.environ.pop(_LEVEL_VARIABLE, None)
        came_to(f"TensorFlow {tf.__version__}")


@contextlib.contextmanager
def _random_numbers_of_the_script() -> Iterator[None]:
    """Leaves Python's generator as it was. (Keras draws from it through ``rich``, for numbers of its styles.)"""
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)


@contextlib.contextmanager
def _strained_stderr() -> Iterator[None]:
    """Holds back what libraries log, and lets it out if the block fails or this process dies."""
    try:
        real = os.dup(2)
    except OSError:  # there is no standard error to write to
        yield
        return
    source, sink = os.pipe()
    try:
        strainer = subprocess.Popen([sys.executable, "-I", "-S", "-c", _STRAINER], stdin=source, stderr=real)
    except OSError as error:
        _log.debug("what TensorFlow logs cannot be held back: %s", error)
        os.close(sink)
        yield
        return
    finally:
        os.close(source)
    sys.stderr.flush()
    os.dup2(sink, 2)
    os.close(sink)
    try:
        yield
        sys.stderr.flush()
        os.write(2, _LOADED)
    finally:
        sys.stderr.flush()
        os.dup2(real, 2)
        os.close(real)
        with contextlib.suppress(subprocess.TimeoutExpired):  # something that was started meanwhile may write still
            strainer.wait(_STRAINER_PATIENCE_S)
