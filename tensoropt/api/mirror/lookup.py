"""The mirror of TensorFlow: names found on first use, wrapped to build in the private graph.

Of ``tensoropt.a.b`` the lookup tries, in this order: our own name, the table of what is unsupported,
``tf.compat.v1.a.b`` and ``tf.a.b``. A function is wrapped so that it builds in the model's graph; its
signature stays TensorFlow's, because the wrapper passes every argument on. Values (dtypes, ``AUTO_REUSE``,
``newaxis``) and most classes are TensorFlow's own objects.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import re
import sys
import threading
import types
from collections.abc import Callable
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from typing import Any

from tensoropt import errors
from tensoropt.api.mirror.model import current_model
from tensoropt.api.mirror.namespaces import (
    ALIASES,
    CONTEXT_CLASSES,
    NAMESPACES,
    OWN,
    PLAIN,
    PLAIN_NAMESPACES,
    UNSUPPORTED,
    VERSION_1_ONLY,
)
from tensoropt.api.mirror.tensorflow_loading import declared_names, load_tensorflow
from tensoropt.errors import GraphError, did_you_mean

__all__ = ["MirrorNamespace", "UnsupportedError", "lookup", "names", "register_namespaces", "tensorflow_twin"]


class UnsupportedError(GraphError):
    """A part of TensorFlow that has no meaning in a distributed graph; the message says what to use."""


class MirrorNamespace(types.ModuleType):
    """A mirrored namespace such as ``tensoropt.nn``: a module whose names are found on first use.

    Invariants: a name gives the same object every time.
    """

    def __init__(self, path: str, *, name: str | None = None) -> None:
        name = name or f"tensoropt.{path}"
        super().__init__(name, f"The mirror of ``tf.{path}``; every call builds in tensoropt's private graph.")
        self.__spec__ = ModuleSpec(name, loader=None)
        self.__package__ = "tensoropt"
        self.__path__: list[str] = []  # by which Python looks for modules below
        self.__dict__["_path"] = path

    def __getattr__(self, name: str) -> Any:
        return lookup(self.__dict__["_path"], name)

    def __dir__(self) -> list[str]:
        return names(self.__dict__["_path"])


_namespaces: dict[str, MirrorNamespace] = {}
_found: dict[str, Any] = {}
_lock = threading.RLock()
_MISSING = object()
_OURS_ALONE = ("layers", "nn.rnn_cell")
_PACKAGES = ("baselines", "cluster", "contrib", "errors", "keras")  # of ours, in which users look for names


def register_namespaces(package: dict[str, Any]) -> None:
    """Make the namespaces importable (``import tensoropt.nn``) and attributes of the package.

    Args:
        package: The globals of the ``tensoropt`` package.
    """
    for path in NAMESPACES:
        sys.modules[f"tensoropt.{path}"] = _namespace(path)
        if "." not in path:
            package[path] = _namespace(path)
    sys.meta_path.append(_InsideContrib())
    # What scripts import as tf, ``tensorflow.compat.v1``, has the names of the package itself.
    version_1 = MirrorNamespace("", name="tensoropt.compat.v1")
    # Scripts catch TensorFlow's errors (OutOfRangeError) by the module that has the package's own.
    errors.__dict__["__getattr__"] = functools.partial(lookup, "errors")
    package["compat"].v1 = sys.modules["tensoropt.compat.v1"] = version_1


class _InsideContrib:
    """Finds what scripts import by the places of files, such as ``tensorflow.contrib.layers.python.layers.layers``.

    All that is below ``python`` is the namespace itself, which has the names of all its files.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Returns the spec of a module, if it is one of these."""
        del path, target
        inside = re.fullmatch(r"tensoropt\.(contrib\.\w+)\.python(\.\w+)*", name)
        if inside is None or inside[1] not in NAMESPACES:
            return None
        return ModuleSpec(name, loader=_Inside(inside[1]), is_package=True)


class _Inside(Loader):
    """Gives a namespace by another name."""

    def __init__(self, path: str) -> None:
        self._path = path

    def create_module(self, spec: ModuleSpec) -> MirrorNamespace:
        """The namespace."""
        return MirrorNamespace(self._path, name=spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing is left to do."""


def _namespace(path: str) -> MirrorNamespace:
    if path not in _namespaces:
        _namespaces[path] = MirrorNamespace(path)
    return _namespaces[path]


def lookup(path: str, name: str) -> Any:
    """Find a public name.

    Args:
        path: The namespace, dotted (``nn``); empty for the package itself.
        name: The name in it.

    Returns:
        Our own object, the wrapped TensorFlow callable, or TensorFlow's own object.

    Raises:
        AttributeError: If neither tensoropt nor TensorFlow has the name.
        UnsupportedError: If TensorFlow has it and it cannot work here.
    """
    dotted = f"{path}.{name}" if path else name
    if name.startswith("_"):  # Asked for by Python's own machinery; answering must not load TensorFlow.
        raise AttributeError(f"module 'tensoropt' has no attribute {dotted!r}")
    with _lock:
        if dotted not in _found:
            _found[dotted] = _find(path, dotted, name)
        return _found[dotted]


def _find(path: str, dotted: str, name: str) -> Any:
    if dotted in OWN:
        module, attribute = OWN[dotted]
        if module.startswith("tensoropt.api."):  # what is the planner's needs no TensorFlow
            load_tensorflow()
        return getattr(importlib.import_module(module), attribute)
    if not path and importlib.util.find_spec(f"tensoropt.{name}") is not None:
        return importlib.import_module(f"tensoropt.{name}")
    if dotted in NAMESPACES:
        return _namespace(dotted)
    if dotted in ALIASES:
        return lookup(*ALIASES[dotted].rpartition(".")[::2])
    if dotted in UNSUPPORTED:
        raise UnsupportedError(f"tensoropt.{dotted}: tf.{dotted} is not supported by tensoropt. {UNSUPPORTED[dotted]}")
    twin = tensorflow_twin(dotted)
    if twin is _MISSING and path.startswith("contrib.") and _tf_slim().is_missing(path):
        raise UnsupportedError(
            f"tensoropt.{dotted}: this part of tf.contrib is that of the package tf_slim, which is not installed. "
            "Install it by pip install tf_slim."
        )
    if twin is _MISSING:
        raise AttributeError(
            f"module 'tensoropt{'.' + path if path else ''}' has no attribute {name!r}: neither tensoropt "
            f"nor the installed TensorFlow has it.{did_you_mean(name, names(path))}"
        )
    if isinstance(twin, types.ModuleType):
        return twin if dotted in PLAIN_NAMESPACES else _namespace(dotted)
    if not callable(twin) or dotted in PLAIN:
        return twin
    if inspect.isclass(twin):
        return _context_class(twin, dotted) if dotted in CONTEXT_CLASSES else twin
    return _wrap(twin, name, f"tensoropt.{path}" if path else "tensoropt")


def tensorflow_twin(dotted: str) -> Any:
    """TensorFlow's object of a dotted name, ``tf.compat.v1``'s where there is one.

    Returns:
        The object, or a private marker if TensorFlow has no such name.
    """
    for module in _twin_modules(dotted.rpartition(".")[0]):
        try:
            return getattr(module, dotted.rpartition(".")[2])
        except (AttributeError, ImportError):  # What Keras 3 removed from tf.compat.v1 fails in either way.
            continue
    return _MISSING


def _twin_modules(path: str) -> list[Any]:
    """TensorFlow's modules that a mirrored namespace stands for, the preferred one first."""
    load_tensorflow()
    import tensorflow as tf

    if path in _OURS_ALONE:  # Keras 3 took them away; ours stand alone.
        return []
    roots = [tf.compat.v1] if path.partition(".")[0] in VERSION_1_ONLY else [tf.compat.v1, tf]
    if path == "contrib.data":  # what became of it
        roots, path = [tf.compat.v1.data.experimental, tf.compat.v1.data], ""
    elif path.startswith("contrib."):
        roots, path = _tf_slim().roots(path, _namespace("train"))
    modules = []
    for root in roots:
        module = functools.reduce(
            lambda parent, part: getattr(parent, part, None), path.split(".") if path else [], root
        )
        if module is not None:
            modules.append(module)
    return modules


def _tf_slim() -> Any:
    """Loads the module that knows tf_slim, by its name, since the mirror does not import ``tensoropt.contrib``."""
    return importlib.import_module("tensoropt.contrib.tf_slim_copy")


def names(path: str) -> list[str]:
    """Every public name of a mirrored namespace, sorted; unsupported ones are left out.

    Where TensorFlow is not loaded, it stays so: then names are those that its files declare, which are nearly all.
    """
    found = {own.rpartition(".")[2] for own in (*OWN, *ALIASES) if own.rpartition(".")[0] == path}
    if "tensorflow" in sys.modules:
        for module in _twin_modules(path):
            public = dir(module) if _is_tensorflows(module) else _tf_slim().names(module)
            found.update(name for name in public if not name.startswith("_"))
    elif path not in _OURS_ALONE:
        found.update(declared_names(path, version_1_only=path.partition(".")[0] in VERSION_1_ONLY))
    if not path:
        found.update(_PACKAGES)
    prefix = f"{path}." if path else ""
    below = [name.removeprefix(prefix) for name in NAMESPACES if name.startswith(prefix)]
    found.update(name for name in below if "." not in name)
    return sorted(name for name in found if prefix + name in OWN or prefix + name not in UNSUPPORTED)


def _is_tensorflows(module: types.ModuleType) -> bool:
    return module.__name__.partition(".")[0] in ("keras", "tensorflow")


def _wrap(function: Callable[..., Any], name: str, module: str) -> Callable[..., Any]:
    """A function of TensorFlow's signature that builds in the private graph."""
    check = _CHECKS.get(name)

    @functools.wraps(function, updated=())  # TensorFlow's own marks on a function's __dict__ are not true of this one.
    def call(*args: Any, **kwargs: Any) -> Any:
        with current_model().enter():
            result = function(*args, **kwargs)
        return result if check is None else check(result)

    key = getattr(function, "_key_op", None)
    if key is None:
        call.__name__ = call.__qualname__ = name
    else:
        call._key_op = key  # type: ignore[attr-defined]  # by which arg_scope of tf_slim knows it
    call.__module__ = module
    return call


class _ContextClass(type):
    """The type of a mirrored class: constructing it, and its class methods, work in the private graph.

    Instances are TensorFlow's own, and ``isinstance`` answers for TensorFlow's class, be it of ``tf.compat.v1``
    or of ``tf``: what ``tf.compat.v1.Variable()`` makes is an instance of ``tf.Variable`` only.
    """

    _twin: Any
    _answers_for: tuple[Any, ...]

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        check = _CHECKS.get(cls.__name__)
        with current_model().enter():
            instance = cls._twin(*args, **kwargs)
        return instance if check is None else check(instance)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls._answers_for)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return subclass is cls or issubclass(subclass, cls._answers_for)

    def __getattr__(cls, name: str) -> Any:
        value = getattr(cls._twin, name)
        static = isinstance(inspect.getattr_static(cls._twin, name), staticmethod)
        builds = (static or inspect.ismethod(value)) and not name.startswith("_")
        return _wrap(value, name, cls.__module__) if builds else value

    def __dir__(cls) -> list[str]:
        return sorted({*super().__dir__(), *dir(cls._twin)})


def _context_class(twin: Any, dotted: str) -> type:
    path, _, name = dotted.rpartition(".")
    twins = [getattr(module, name, None) for module in _twin_modules(path)]
    return _ContextClass(
        name,
        (),
        {
            "_twin": twin,
            "_answers_for": tuple(each for each in twins if each is not None),
            "__doc__": twin.__doc__,
            "__module__": f"tensoropt.{path}" if path else "tensoropt",
            "__signature__": inspect.signature(twin),
        },
    )


def _resource_variable(variable: Any) -> Any:
    """Let a whole resource variable through, and what the user's ``custom_getter`` has made of one.

    Raises:
        UnsupportedError: For a reference variable or a partitioned one.
    """
    import tensorflow as tf

    if not hasattr(variable, "handle") and not isinstance(variable, tf.Tensor):
        raise UnsupportedError(
            f"Variable {getattr(variable, 'name', variable)!r}: it must be one whole resource variable, "
            f"got {type(variable).__name__}. Leave out use_resource=False and partitioner: find_strategy "
            "decides how "
            "a variable is split."
        )
    return variable


#: What a mirrored call's result must be, by public name.
_CHECKS: dict[str, Callable[[Any], Any]] = {
    "Variable": _resource_variable,
    "get_local_variable": _resource_variable,
    "get_variable": _resource_variable,
}
