"""What scripts do with gradients and optimizers, case by case in one job."""

from __future__ import annotations

from collections.abc import Sequence

from tests.scripts.cases import Distributed, Plain, case, close, core_case, main, some_plans
from tests.scripts.trainings import TRAININGS


def check(name: str, plans: Sequence[str | int] = ("mini_time", 1)) -> None:
    """Takes the turns by plans and in one process, and compares before the first and after each."""
    training = TRAININGS[name]
    fetches = list(training.fetches)
    plain = Plain(training.make)
    wanted = [plain.run(fetches, training.feeds(0))]
    for number, turn in enumerate(training.turns):
        plain.run(turn, training.feeds(number))
        wanted.append(plain.run(fetches, training.feeds(number)))
    for option in some_plans(plans):
        job = Distributed(training.make, option)
        for number, expected in enumerate(wanted):
            if number:
                job.run(training.turns[number - 1], training.feeds(number - 1))
            got = job.run(fetches, training.feeds(max(0, number - 1)))
            for what, mine, theirs in zip(fetches, got, expected, strict=True):
                close(mine, theirs, f"plan {option}, after {number} turns: {what}")


@core_case
def every_optimizer_trains_rows_and_whole_gradients() -> None:
    check("every optimizer")


@case
def an_optimizer_of_ones_own_trains() -> None:
    check("an optimizer of one's own")


@case
def gradients_may_be_clipped_and_slots_read() -> None:
    check("clipped values and slots")


@case
def gradients_may_be_added_up_over_several_runs() -> None:
    check("accumulation")


@case
def rows_may_be_clipped_and_written_by_hand() -> None:
    check("rows")


@case
def rows_may_be_merged_and_clipped() -> None:
    check("merged rows")


@case
def rows_may_pass_other_operators() -> None:
    check("passed rows", ("mini_time", "mini_memory", 1, 2, 3))


@case
def two_players_have_losses_of_their_own() -> None:
    check("two losses")


@case
def gradients_by_tensors_weighed_and_stopped() -> None:
    check("gradients by tensors")


if __name__ == "__main__":
    main("training")
