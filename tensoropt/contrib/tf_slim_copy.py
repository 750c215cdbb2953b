"""The package tf_slim, which is what became of TensorFlow's ``tf.contrib.slim``, over the mirror's layers.

It is imported into a copy of our own, whose layers, optimizers, savers and sessions are the mirror's: TensorFlow's
make branches of the graph, take gradients of which the model knows nothing, and need the package tf_keras. A script's
own ``import tf_slim`` is another copy, which is left as it is.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pkgutil
import sys
import types
from typing import Any

__all__ = ["is_missing", "names", "roots"]

_PACKAGE = "tf_slim"
#: The modules of the package that have the names of a namespace of ``tf.contrib``.
_MODULES = {
    "contrib.framework": ("ops.arg_scope", "ops.variables", "ops.framework_ops"),
    "contrib.layers": ("layers",),
    "contrib.losses": ("losses",),
    "contrib.metrics": ("metrics",),
    "contrib.slim": ("",),
    "contrib.training": ("training.training", "training.evaluation"),
}
_OPTIMIZERS = {
    "Adagrad": "AdagradOptimizer",
    "Adam": "AdamOptimizer",
    "Ftrl": "FtrlOptimizer",
    "RMSProp": "RMSPropOptimizer",
    "SGD": "GradientDescentOptimizer",
}


def roots(path: str, train: Any) -> tuple[list[types.ModuleType], str]:
    """The modules of tf_slim that a namespace of ``tf.contrib`` is in; none where the package is missing.

    Args:
        path: of the namespace (``contrib.slim.nets``).
        train: the mirror's ``tf.train``.

    Returns:
        The modules, and what remains of the path inside of them (``nets``).
    """
    root = ".".join(path.split(".")[:2])
    if root not in _MODULES or is_missing(path):
        return [], ""
    made = _copy(train)
    return [made[f"{_PACKAGE}.{name}".rstrip(".")] for name in _MODULES[root]], path[len(root) + 1 :]


def is_missing(path: str) -> bool:
    """Tells whether the names of a namespace are tf_slim's, and tf_slim is not installed."""
    return ".".join(path.split(".")[:2]) in _MODULES and importlib.util.find_spec(_PACKAGE) is None


def names(module: types.ModuleType) -> list[str]:
    """Returns the names that a module of tf_slim defines itself, without imported ones."""
    return [
        name
        for name, value in vars(module).items()
        if f"{getattr(value, '__module__', None) or getattr(value, '__name__', '')}.".startswith(f"{_PACKAGE}.")
    ]


@functools.cache
def _copy(train: Any) -> dict[str, types.ModuleType]:
    """The package's modules by name."""
    script_own = _take_out()
    try:
        importlib.import_module(_PACKAGE)
        for folder in ("nets", "ops"):  # which it does not load itself
            package = importlib.import_module(f"{_PACKAGE}.{folder}")
            for each in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
                if not each.name.endswith("_test"):
                    importlib.import_module(each.name)
    finally:
        made = _take_out()
        sys.modules.update(script_own)
    _adapt(made, train)
    return made


def _take_out() -> dict[str, types.ModuleType]:
    """Removes tf_slim's modules from ``sys.modules``, as if they had not been imported, and returns them."""
    names = [name for name in sys.modules if name == _PACKAGE or name.startswith(f"{_PACKAGE}.")]
    return {name: sys.modules.pop(name) for name in names}


class _Moved(types.ModuleType):
    """One of TensorFlow's private modules, with the names that it had: what went elsewhere has a public name."""

    def __init__(self, module: types.ModuleType) -> None:
        super().__init__(module.__name__)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        import tensorflow as tf

        public = {"variable": "Variable"}.get(name, name)
        return getattr(self._module, name, None) or getattr(tf.compat.v1, public)


class _Layers(types.ModuleType):
    """The mirror's layers by all names that TensorFlow had for them."""

    def __getattr__(self, name: str) -> Any:
        from tensoropt.api.mirror import layers

        return getattr(layers, name.replace("Convolution", "Conv"))


def _adapt(made: dict[str, types.ModuleType], train: Any) -> None:
    """Puts parts of the mirror into the places of TensorFlow's, and finds what TensorFlow has moved since."""
    for module in made.values():
        for name, value in list(vars(module).items()):
            if not isinstance(value, types.ModuleType) or not value.__name__.startswith("tensorflow.python."):
                continue
            parts = value.__name__.split(".")
            if parts[2] == "layers":
                value = _Layers("tensoropt.layers")
            elif parts[2] == "training" and parts[3] in ("monitored_session", "saver", "supervisor"):
                value = train
            else:
                value = _Moved(value)
            setattr(module, name, value)
    optimizers: dict[str, Any] = {name: getattr(train, twin) for name, twin in _OPTIMIZERS.items()}
    optimizers["Momentum"] = functools.partial(train.MomentumOptimizer, momentum=0.9)  # tf_slim's own
    made["tf_slim.layers.optimizers"].OPTIMIZER_CLS_NAMES.update(optimizers)
