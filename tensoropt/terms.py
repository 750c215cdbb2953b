"""The terms in which errors speak of a model's inputs, by the API that the user came by.

An error about an input uses the model's terms, so that nobody is asked for a ``feed_dict`` who has none.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ARGUMENTS", "BATCHES", "FEEDS", "Terms"]


@dataclass(frozen=True, slots=True)
class Terms:
    """The words of one API.

    Attributes:
        noun: what an input is.
        give: the verb for giving it a value.
        given: its participle.
        remedy: how to give one that is missing.
        opened: how its first dimension is left open.
        early: how a plan is made before the first training run.
        train: how a step comes to have gradients of its own.
    """

    noun: str
    give: str
    given: str
    remedy: str
    opened: str
    early: str
    train: str

    def subject(self, name: str, source: str | None = None) -> str:
        """An input of a name, and of a line of the user's if that is known, as errors begin with it.

        Example:
            >>> FEEDS.subject("x", "train.py:3"), ARGUMENTS.subject("step/x")
            ("Placeholder 'x' (train.py:3)", "Argument 'step/x'")
        """
        return f"{self.noun} '{name}'" + (f" ({source})" if source else "")


FEEDS = Terms(
    "Placeholder",
    "feed",
    "fed",
    "Add it to feed_dict with",
    "the placeholder leaves its first dimension open (None)",
    "find_strategy(batch_size=…), or find_strategy(example={placeholder: batch}) with arrays as they are fed",
    "Call optimizer.minimize(loss) first",
)
ARGUMENTS = Terms(
    "Argument",
    "pass",
    "passed",
    "Pass the function",
    "the input_signature leaves its first dimension open (None)",
    "plan(batch_size=…) with an input_signature",
    "Take gradients by a tape in the step itself, not in a vectorized map",
)
BATCHES = Terms(
    "Batch",
    "give",
    "given",
    "Give fit",
    "the model's Input leaves its batch size open",
    "train_on_batch with one batch",
    "Compile the model with an optimizer and a loss",
)
