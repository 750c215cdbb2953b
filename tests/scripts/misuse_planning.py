"""Misuses on all ranks before a graph is built: of the order of calls, of planning, of plans and of engines."""

from __future__ import annotations

from typing import Any

import tensoropt
from tensoropt.cluster.presets import cpu
from tests.scripts.misuse import BATCH, Classifier, case, environment, plan_file

# ------------------------------------------------------------------------------------------------------- order


@case
def run_before_the_graph_is_built() -> None:
    tensoropt.run(Classifier().loss)


@case
def session_before_the_graph_is_built() -> None:
    tensoropt.Session().run(Classifier().loss)


@case
def reference_losses_before_the_graph_is_built() -> None:
    model = Classifier()
    tensoropt.reference_losses(model.loss, model.train, [])


@case
def session_with_a_target() -> None:
    Classifier().build()
    tensoropt.Session("grpc://elsewhere")


# ---------------------------------------------------------------------------------------------------- planning


@case
def unknown_option() -> None:
    Classifier()
    tensoropt.find_strategy("fastest")


@case
def search_as_an_option() -> None:
    Classifier()
    tensoropt.find_strategy("zero3")


@case
def option_of_another_type() -> None:
    Classifier()
    tensoropt.find_strategy(3)  # type: ignore[call-overload]


@case
def unknown_way_to_feed() -> None:
    Classifier()
    tensoropt.find_strategy(feed="by hand")


@case
def memory_that_nothing_fits_in() -> None:
    Classifier()
    tensoropt.find_strategy("mini_time", memory_bytes=10)


@case
def memory_that_data_parallelism_does_not_fit_in() -> None:
    Classifier()
    tensoropt.find_strategy("data_parallel", memory_bytes=10)


@case
def negative_memory() -> None:
    Classifier()
    tensoropt.find_strategy(memory_bytes=-1)


@case
def batch_size_of_zero() -> None:
    Classifier(batch=None)
    tensoropt.find_strategy(batch_size=0)


@case
def batch_that_the_ranks_do_not_divide() -> None:
    Classifier(batch=7)
    tensoropt.find_strategy()


@case
def open_shape_without_a_batch_size() -> None:
    Classifier(batch=None)
    tensoropt.find_frontier()


@case
def open_shape_beside_the_batch() -> None:
    tensoropt.reset_default_graph()
    tensoropt.placeholder(tensoropt.float32, [BATCH, None], name="words")
    tensoropt.find_strategy(batch_size=BATCH)


@case
def empty_model() -> None:
    tensoropt.reset_default_graph()
    tensoropt.find_strategy()


@case
def topology_of_another_size() -> None:
    tensoropt.init(cpu(tensoropt.world_size() + 1))


# ------------------------------------------------------------------------------------------------------- plans


@case
def missing_plan_file() -> None:
    Classifier()
    tensoropt.find_strategy("/nowhere/plan.json")


@case
def plan_file_that_is_no_json() -> None:
    path = plan_file()
    path.write_text(path.read_text()[:100])
    tensoropt.find_strategy(path)


@case
def plan_file_that_is_no_plan() -> None:
    path = plan_file()
    path.write_text("[1, 2]")
    tensoropt.find_strategy(path)


@case
def plan_file_without_operators() -> None:
    tensoropt.find_strategy(plan_file(lambda data: data.pop("operators")))


@case
def plan_file_of_another_schema() -> None:
    tensoropt.find_strategy(plan_file(lambda data: data.update(schema_version=99)))


@case
def plan_file_with_an_unknown_axis() -> None:
    def change(data: dict[str, Any]) -> None:
        data["operators"]["logits"]["actions"] = ["sideways"] * len(data["mesh"])

    tensoropt.find_strategy(plan_file(change))


@case
def plan_file_that_lacks_an_operator() -> None:
    tensoropt.find_strategy(plan_file(lambda data: data["operators"].pop("logits")))


@case
def plan_file_without_its_reshards() -> None:
    tensoropt.find_strategy(plan_file(lambda data: data.update(edges=[])))


@case
def plan_for_another_graph() -> None:
    Classifier()
    plan = tensoropt.find_strategy("data_parallel")
    Classifier(width=6)
    tensoropt.build_execution_graph(plan=plan)


@case
def saved_plan_for_another_graph() -> None:
    path = plan_file()
    Classifier(width=6)
    tensoropt.find_strategy(path)


@case
def plan_for_another_number_of_devices() -> None:
    Classifier()
    tensoropt.build_execution_graph(plan=tensoropt.find_strategy(topology=cpu(4)))


@case
def saved_plan_for_another_number_of_devices() -> None:
    Classifier()
    tensoropt.find_strategy(tensoropt.find_strategy(topology=cpu(4)))


@case
def no_plan() -> None:
    Classifier()
    tensoropt.build_execution_graph()


# ----------------------------------------------------------------------------------------------------- engines


@case
def unknown_engine() -> None:
    Classifier()
    tensoropt.build_execution_graph(engine="pytorch", plan=tensoropt.find_strategy())


@case
def unknown_collectives() -> None:
    Classifier()
    tensoropt.build_execution_graph(plan=tensoropt.find_strategy(), collectives="nccl")


@case
def unknown_collectives_in_the_environment() -> None:
    Classifier()
    with environment("TENSOROPT_COLLECTIVES", "nccl"):
        tensoropt.build_execution_graph(plan=tensoropt.find_strategy())
