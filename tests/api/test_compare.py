"""All methods on one model, side by side."""

from __future__ import annotations

import os
import signal

import pytest

from tensoropt.mcmc import chain
from tests.plan.small_graphs import mlp, trained

pytestmark = [pytest.mark.tf, pytest.mark.usefixtures("model")]


def _build() -> object:
    """A dense network whose weights are most of its memory."""
    import tensoropt

    x = tensoropt.placeholder(tensoropt.float32, [16, 8], name="x")
    y = tensoropt.placeholder(tensoropt.int32, [16], name="y")
    hidden = tensoropt.layers.dense(x, 512, activation=tensoropt.nn.relu)
    loss = tensoropt.softmax_cross_entropy(y, tensoropt.layers.dense(hidden, 8))
    tensoropt.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    return loss


def test_every_method_has_a_row_with_costs_or_a_reason() -> None:
    import tensoropt
    from tensoropt.cluster.presets import cpu
    from tensoropt.search import finders

    table = tensoropt.compare(_build(), cpu(4))
    assert [row.method for row in table.rows] == [finder.name for finder in finders()]
    assert (table.devices, table.batch) == (4, 16)
    placed = {finder.name for finder in finders() if finder.places}
    for row in table.rows:
        if row.reason is None:
            assert row.time_s is not None and row.network_time_s is not None and row.network_bytes is not None
            assert 0 <= row.network_time_s < row.time_s
            assert (row.network_bytes > 0) == (row.network_time_s > 0)
            assert row.simulated_time_s is not None
            # Collectives keep devices busy: only devices that do different things work side by side.
            if row.method in placed:
                assert 0 < row.simulated_time_s <= row.time_s * (1 + 1e-6)
            else:
                assert row.simulated_time_s == pytest.approx(row.time_s, rel=1e-6)
            assert row.fits
        else:
            assert row.reason.startswith("does not apply because ")
            assert row.time_s is None
    assert {row.method for row in table.rows if row.reason} >= {"one_weird_trick", "gnmt"}
    plan = tensoropt.find_strategy(topology=cpu(4))
    assert table.row("ft").time_s == plan.time_s
    assert table.row("data_parallel").time_s == tensoropt.find_strategy("data_parallel", topology=cpu(4)).time_s
    fastest = table.fastest()
    assert fastest is not None
    assert fastest.time_s == pytest.approx(plan.time_s)
    for row in table.rows:
        assert (row.plan is None) == (row.reason is not None)
        if row.plan is not None:
            assert (row.plan.option, row.plan.time_s) == (row.method, row.time_s)
            assert tensoropt.strategy_rows(row.plan)
    assert table.plan("ft").operators == plan.operators
    # A strategy that executes is a plan to find again, after a way through a file too.
    again = type(table).from_json(table.to_json()).plan("zero3")
    assert tensoropt.find_strategy(again, topology=cpu(4)).to_json() == table.plan("zero3").to_json()
    # Chains begin at the best that others found in the space, and end no worse.
    others = [row for row in table.rows if row.reason is None and row.method not in placed]
    assert table.row("mcmc").simulated_time_s == min(row.simulated_time_s or 0.0 for row in others)


def test_the_memory_limit_decides_which_strategy_is_shown() -> None:
    import tensoropt
    from tensoropt.cluster.presets import cpu

    loss = _build()
    free = tensoropt.compare(loss, cpu(4), methods=["ft", "data_parallel"])
    whole = free.row("data_parallel").memory_bytes or 0.0
    tight = tensoropt.compare(loss, cpu(4), methods=["ft", "data_parallel"], memory_bytes=whole - 1)
    assert tight.row("data_parallel").fits is False
    assert tight.row("data_parallel").memory_bytes == whole
    assert tight.row("ft").fits
    assert (tight.row("ft").memory_bytes or 0.0) < whole


def test_a_logical_graph_is_compared_by_itself() -> None:
    import tensoropt
    from tensoropt.cluster.presets import cpu

    table = tensoropt.compare(trained(mlp(), "w1", 2), cpu(4), methods=["ft", "megatron", "zero3"])
    assert all(row.reason is None for row in table.rows)
    bare = tensoropt.compare(trained(mlp(), "w1"), cpu(4), methods=["zero3"])
    # Two slots of a weight of 6 x 12 floats, in quarters, and five numbers.
    more = (table.row("zero3").memory_bytes or 0) - (bare.row("zero3").memory_bytes or 0)
    assert more == 2 * 6 * 12 * 4 / 4 + 5 * 4


def test_chains_of_a_comparison_have_options() -> None:
    import tensoropt
    from tensoropt.cluster.presets import cpu

    chains = tensoropt.Mcmc(iterations=200, seed=3, chains=1, patience=1.0)
    table = tensoropt.compare(_build(), cpu(4), methods=["ft", chains])
    assert [row.method for row in table.rows] == ["ft", "mcmc"]
    assert table.plan("mcmc").notes["proposals"] == 200
    assert "by simulated time (collectives block), 200 proposals of 1 chain" in table.row("mcmc").remark()
    assert (table.row("mcmc").simulated_time_s or 0.0) <= (table.row("ft").simulated_time_s or 0.0)


def test_communication_beside_computation_is_simulated_only_where_it_is_asked_for() -> None:
    import tensoropt
    from tensoropt.cluster.presets import cpu

    loss = _build()
    methods: list[str | tensoropt.Mcmc] = ["data_parallel", "mcmc", tensoropt.Mcmc(iterations=200)]
    table = tensoropt.compare(loss, cpu(4), methods=methods, overlap=True)
    assert table.overlap and "communication beside computation" in str(table)
    for row in table.rows:
        assert 0 < (row.simulated_time_s or 0.0) < (row.time_s or 0.0)
    # A method by name searches as the table is simulated, one with options as these say.
    assert [table.plan(name).notes["overlap"] for name in ("mcmc", "mcmc (2)")] == [True, False]
    assert not tensoropt.compare(loss, cpu(4), methods=["data_parallel"]).overlap
    with pytest.raises(tensoropt.errors.PlanError, match="compare: overlap must be True or False, got 'yes'"):
        tensoropt.compare(loss, cpu(4), methods=["ft"], overlap="yes")  # type: ignore[arg-type]


def test_chains_with_other_options_are_rows_of_their_own() -> None:
    import tensoropt
    from tensoropt.cluster.presets import cpu

    few, more = (tensoropt.Mcmc(iterations=count, chains=1, patience=1.0) for count in (20, 40))
    table = tensoropt.compare(_build(), cpu(2), methods=["ft", few, more])
    assert [row.method for row in table.rows] == ["ft", "mcmc", "mcmc (2)"]
    assert [table.plan(name).notes["proposals"] for name in ("mcmc", "mcmc (2)")] == [20, 40]


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_keeps_the_rows_that_are_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    import tensoropt
    from tensoropt.cluster.presets import cpu
    from tensoropt.mcmc import finder

    def interrupt(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    loss = _build()
    # Before there are chains.
    with monkeypatch.context() as patched:
        patched.setattr(finder, "initial_of", interrupt)
        table = tensoropt.compare(loss, cpu(4), methods=["ft", "mcmc", "zero3"])
        with pytest.raises(KeyboardInterrupt):  # nothing is there to keep
            tensoropt.compare(loss, cpu(4), methods=["mcmc", "ft"])
    assert [row.reason for row in table.rows] == [
        None,
        "ended by Ctrl-C before it had a strategy",
        "not compared: Ctrl-C ended the comparison",
    ]
    assert table.plan("ft").option == "ft"
    assert "not compared: Ctrl-C ended the comparison" in str(table)
    # In a chain, which gives its best so far.
    monkeypatch.setattr(chain.Chain, "_propose", interrupt)
    table = tensoropt.compare(loss, cpu(4), methods=["ft", "mcmc", "zero3"])
    assert [row.reason is None for row in table.rows] == [True, True, False]
    assert table.row("mcmc").remark().endswith("ended by Ctrl-C")


def test_bad_arguments_are_refused() -> None:
    import tensoropt
    from tensoropt.cluster.presets import cpu
    from tensoropt.errors import GraphError, PlanError, SessionError

    loss = _build()
    with pytest.raises(PlanError, match=r"compare: method 'horovod' is unknown. Use some of 'columns', 'ft'"):
        tensoropt.compare(loss, cpu(4), methods=["horovod"])
    with pytest.raises(PlanError, match="compare: memory_bytes must be above 0, got 0"):
        tensoropt.compare(loss, cpu(4), memory_bytes=0)
    with pytest.raises(PlanError, match="compare: batch_size must be at least 1, got 0"):
        tensoropt.compare(loss, cpu(4), batch_size=0)
    with pytest.raises(PlanError, match="cannot be shared by 3 devices"):
        tensoropt.compare(loss, cpu(3))
    with pytest.raises(SessionError, match="compare: the devices are unknown"):
        tensoropt.compare(loss)
    with pytest.raises(GraphError, match="compare: nothing minimizes 'Const:0'; there are gradients of"):
        tensoropt.compare(tensoropt.constant(1.0), cpu(4))
    tensoropt.reset_default_graph()
    with pytest.raises(GraphError, match="compare: model must be a loss of the model under construction"):
        tensoropt.compare(loss, cpu(4))
