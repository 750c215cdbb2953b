"""Sessions as TensorFlow 1 scripts have them, over the one job and its execution graph."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn

import tensorflow as tf

from tensoropt.api.mirror.model import Model, current_model
from tensoropt.api.session import runs
from tensoropt.api.session.job import current_job
from tensoropt.api.session.seeds import resolve_seeds
from tensoropt.errors import SessionError
from tensoropt.stages import announce

__all__ = ["InteractiveSession", "Session"]

_NUMBERS = itertools.count()


class Apart:
    """TensorFlow's own session of a graph beside the job's model, on this rank.

    What draws without a seed draws alike on all ranks.
    """

    def __init__(self, graph: Any, config: Any) -> None:
        """Opens the session.

        Args:
            graph: made by ``tensoropt.Graph()``.
            config: a ``tf.compat.v1.ConfigProto``, or None.
        """
        self._graph = graph
        self._version = -1
        self.session = tf.compat.v1.Session(graph=graph, config=config)
        announce("Session: of a graph beside the job's model, which trains nothing; each rank runs it by itself")

    def run(self, fetches: Any, feed_dict: Any, options: Any, run_metadata: Any) -> Any:
        """Runs the fetches in TensorFlow, with the job's seeds, and returns their values."""
        if self._version != self._graph.version:
            for name, seeds in resolve_seeds(self._graph, current_job().world.base_seed).items():
                op = self._graph.get_operation_by_name(name)
                for key, seed in zip(("seed", "seed2"), seeds, strict=True):
                    op._set_attr(key, tf.compat.v1.AttrValue(i=seed))
            self._version = self._graph.version
        return self.session.run(fetches, feed_dict, options, run_metadata)


class Session:
    """``tf.compat.v1.Session`` of a job: it needs the execution graph only when it runs.

    All sessions run one execution graph: variables have values from ``build_execution_graph`` on, and keep them when a
    session is closed. Where another session gives variables their initial values, random numbers begin anew. A graph
    beside the job's model that trains nothing each rank runs alone, as TensorFlow does.

    Attributes:
        number: of this session among those of the process.

    Example::

        with tensoropt.Session() as session:
            session.run(tensoropt.global_variables_initializer())
            session.run(train_op, feed_dict={...})
    """

    def __init__(self, target: str = "", graph: Any = None, config: Any = None) -> None:
        """Opens a session, before or after the model is planned and built.

        Args:
            target: empty: the session runs in this process.
            graph: a graph of ``tensoropt.Graph()``; by default the default graph's model.
            config: a ``tf.compat.v1.ConfigProto`` for this rank's local session, if it has not run yet.

        Raises:
            SessionError: for a target, a graph that is no model's, or a config that is at odds with that of
                ``build_execution_graph``.
        """
        if target:
            raise SessionError(
                f"Session: target must be '', got {target!r}. The ranks of a job are started by mpirun, and each runs "
                "its part in its own process."
            )
        if graph is not None and not isinstance(graph, tf.Graph):
            raise SessionError(f"Session: graph must be a tensoropt.Graph, got {graph!r}.")
        self._graph = current_model().graph if graph is None else graph
        self.number = next(_NUMBERS)
        self._closed = False
        self._config = config
        self._own: Apart | None = None
        self._entered: list[contextlib.ExitStack] = []
        if config is not None:
            current_job().configure(config)

    @property
    def graph(self) -> Any:
        """The logical graph, a ``tf.Graph``."""
        return self._graph

    @property
    def apart(self) -> Apart | None:
        """The runner of this session's graph if that graph needs no execution graph; else None.

        This is so if the script made the graph itself, none is built of it, and it trains nothing.
        """
        model, built = getattr(self._graph, "tensoropt_model", None), current_job().model
        if not isinstance(model, Model) or model is built or model.gradient_calls:
            return None
        if self._own is None:
            self._own = Apart(self._graph, self._config)
        return self._own

    @property
    def graph_def(self) -> Any:
        """The logical graph as a ``GraphDef``, with the shapes of tensors."""
        return self._graph.as_graph_def(add_shapes=True)

    @property
    def sess_str(self) -> str:
        """The target, which is this process."""
        return ""

    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        options: Any = None,
        run_metadata: Any = None,
    ) -> Any:
        """Runs operations and evaluates tensors, on all ranks together; see :func:`tensoropt.run`.

        Args:
            options: a ``tf.compat.v1.RunOptions`` for this rank's local step, such as a full trace.
            run_metadata: a ``tf.compat.v1.RunMetadata`` that is filled with what TensorFlow says of that step.

        Raises:
            SessionError: once the session is closed, and as :func:`tensoropt.run`.
        """
        if self._closed:
            raise SessionError("Session: is closed. Run it inside its with block, or open another one.")
        if options is not None and not options.ListFields():  # monitored sessions always give both
            options = run_metadata = None
        apart = self.apart
        if apart is not None:
            return apart.run(fetches, feed_dict, options, run_metadata)
        return runs.run(current_job(), fetches, feed_dict, session=self, options=options, run_metadata=run_metadata)

    def make_callable(
        self, fetches: Any, feed_list: Sequence[Any] | None = None, accept_options: bool = False
    ) -> Callable[..., Any]:
        """A function that takes a value for each of ``feed_list`` and gives what :meth:`run` gives.

        Args:
            feed_list: what is fed, in order.
            accept_options: whether the function takes ``options`` and ``run_metadata`` by keyword.
        """
        feeds = list(feed_list or ())

        def call(*values: Any, **keywords: Any) -> Any:
            if len(values) != len(feeds):
                raise SessionError(f"make_callable: the function takes {len(feeds)} values to feed, got {len(values)}.")
            if keywords and not accept_options:
                raise TypeError(f"make_callable: {sorted(keywords)} need make_callable(…, accept_options=True).")
            return self.run(fetches, dict(zip(feeds, values, strict=True)), **keywords)

        return call

    def list_devices(self) -> Any:
        """The devices of this rank's local session."""
        apart = self.apart
        own = current_job().require_executor("list_devices").state.session if apart is None else apart.session
        return own.list_devices()

    def partial_run(self, handle: Any, fetches: Any, feed_dict: Any = None) -> NoReturn:
        """Raises an error: partial runs are not supported, as a step runs as a whole on all ranks."""
        raise SessionError(
            "Session.partial_run: a step is run as a whole, since all ranks take part in it. Fetch all that is wanted "
            "in one run, or run twice."
        )

    def partial_run_setup(self, fetches: Any, feeds: Any = None) -> NoReturn:
        """Raises an error: partial runs are not supported, as a step runs as a whole on all ranks."""
        self.partial_run(None, fetches, feeds)

    def as_default(self) -> Any:
        """A context in which ``tensor.eval()`` and ``operation.run()`` use this session."""
        # It works for all that can run, and has no other public name.
        return tf.compat.v1.Session.as_default(self)

    def close(self) -> None:
        """Ends the session, and its iterators. The variables live as long as the execution graph."""
        self._closed = True
        if (pipelines := current_job().pipelines) is not None:
            pipelines.end(self.number)
        if self._own is not None:
            self._own.session.close()

    def __enter__(self) -> Session:
        stack = contextlib.ExitStack()
        stack.enter_context(self._graph.as_default())
        stack.enter_context(self.as_default())
        self._entered.append(stack)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._entered.pop().close()
        self.close()


class InteractiveSession(Session):
    """``tf.compat.v1.InteractiveSession``: a :class:`Session` that is the default one until it is closed."""

    def __init__(self, target: str = "", graph: Any = None, config: Any = None) -> None:
        """Opens the session and makes it the default one; see :class:`Session`."""
        super().__init__(target, graph, config)
        self._installed = contextlib.ExitStack()
        if graph is not None:
            self._installed.enter_context(graph.as_default())
        self._installed.enter_context(self.as_default())

    def close(self) -> None:
        """Ends the session, which is no longer the default one."""
        self._installed.close()
        super().close()
