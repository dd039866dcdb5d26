"""Which world sizes a resume offers as free."""

from __future__ import annotations

from server.context import Context
from server.jobs.resume import options
from tests.server.harness import Harness

TRAINING = {"steps": 100, "global_batch_size": 16, "micro_batch_size": 4}


def test_an_option_is_free_where_a_node_holds_the_units_of_its_layouts(
    context: Context, harness: Harness
) -> None:
    """A job of one sequence a step and one block has layouts of `tp` and `cp` alone."""
    harness.add_node("node-1", slots=4)
    harness.add_node("node-2", slots=4)
    job_id, (supervisor,) = harness.running(
        model={"size": "debug", "n_layers": 1},
        training={"steps": 100, "global_batch_size": 1, "micro_batch_size": 1},
        resources={"world_size": 2},
        parallelism={"tp": 2},
    )
    harness.commit_checkpoint(job_id, 20)
    supervisor.end("succeeded")

    def free() -> list[int]:
        return [o.world_size for o in options(context, job_id).options if o.free_now and o.layouts]

    assert {1, 2, 4} <= {*free()}
    harness.running(name="first", training=TRAINING, resources={"world_size": 3})
    assert free() == [1, 2, 4]
    harness.running(name="second", training=TRAINING, resources={"world_size": 3})
    assert free() == [1], "one slot is free on each node, and no pair on one"
