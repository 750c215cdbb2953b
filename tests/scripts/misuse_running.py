"""Misuses on all ranks of a graph that is built: wrong feeds, wrong fetches, and what cannot be verified."""

from __future__ import annotations

import numpy as np

import tensoropt
from tests.scripts.misuse import BATCH, Classifier, built, case, forget, run_with

# ----------------------------------------------------------------------------------------- feeds and fetches


@case
def feed_of_another_shape() -> None:
    run_with(x=np.ones((BATCH, 5), np.float32))


@case
def feed_of_another_batch() -> None:
    run_with(x=np.ones((BATCH + 2, 4), np.float32))


@case
def feed_of_another_dtype() -> None:
    run_with(y=np.full(BATCH, 0.5))


@case
def feed_of_text() -> None:
    run_with(rate="fast")


@case
def feed_of_none() -> None:
    run_with(x=None)


@case
def feed_of_a_ragged_list() -> None:
    run_with(x=[[1.0, 2.0], [3.0]])


@case
def missing_feed() -> None:
    model = built()
    feeds = model.feeds()
    del feeds[model.y]
    tensoropt.run(model.train, feeds)


@case
def feed_of_a_tensor_that_is_computed() -> None:
    model = built()
    tensoropt.run(model.loss, {**model.feeds(), model.logits: np.ones((BATCH, 5))})


@case
def feed_of_what_has_no_value_yet() -> None:
    model = built()
    tensoropt.run(model.loss, {**model.feeds(), model.x: tensoropt.ones([BATCH, 4], name="ones")})


@case
def feed_of_a_variable() -> None:
    model = built()
    tensoropt.run(model.loss, {**model.feeds(), model.w: np.ones((4, 4))})


@case
def feed_by_an_unknown_name() -> None:
    model = built()
    tensoropt.run(model.loss, {**model.feeds(), "z": 1})


@case
def feed_of_another_model() -> None:
    old = built()
    Classifier()
    try:
        new = tensoropt.placeholder(tensoropt.float32, [], name="rate_2")
        tensoropt.run(old.loss, {**old.feeds(), new: 1.0})
    finally:
        forget()


@case
def fetch_of_none() -> None:
    built()
    tensoropt.run([None])


@case
def fetch_of_an_unknown_name() -> None:
    built()
    tensoropt.run("nothing:0")


@case
def fetch_of_a_number() -> None:
    built()
    tensoropt.run(7)


@case
def fetch_of_another_model() -> None:
    built()
    try:
        tensoropt.run(Classifier().loss)
    finally:
        forget()


@case
def value_that_the_graph_refuses() -> None:
    model = Lookup()
    model.build()
    tensoropt.run(model.train, {model.words: np.full(BATCH, 99)})


class Lookup(Classifier):
    """A model with a table whose rows are looked up by what is fed."""

    def __init__(self) -> None:
        tensoropt.reset_default_graph()
        self.words = tensoropt.placeholder(tensoropt.int32, [BATCH], name="words")
        table = tensoropt.get_variable("table", [6, 4])
        self.loss = tensoropt.reduce_mean(tensoropt.square(tensoropt.nn.embedding_lookup(table, self.words)))
        self.train = tensoropt.GradientDescentOptimizer().minimize(self.loss)


# ------------------------------------------------------------------------------------------------- verification


@case
def verify_a_model_that_trains_nothing() -> None:
    tensoropt.reset_default_graph()
    tensoropt.get_variable("w", [4])
    tensoropt.verify(tensoropt.find_strategy())


@case
def verify_one_of_two_training_steps() -> None:
    model = Classifier()
    tensoropt.train.AdamOptimizer().minimize(model.loss)
    tensoropt.verify(tensoropt.find_strategy())


@case
def verify_what_is_no_training_step() -> None:
    model = Classifier()
    tensoropt.verify(tensoropt.find_strategy(), train_op=model.loss)
