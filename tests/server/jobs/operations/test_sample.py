"""Samples: the message to a node, its result, and the code that may run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from server.core.context import Context
from server.core.errors import ConflictError
from server.jobs.checkpoints import deletion, service
from tests.actors import ADA, EVE
from tests.server.harness import BRINGS_CODE, Harness
from tests.server.yard import Yard
from trainyard.protocol.operations import OperationOutcome, SampleEnd, SampleResult
from trainyard.protocol.rest.checkpoints import SampleRequest

TEXT = "def \x00\x1b[2J é"
DONE = OperationOutcome(
    outcome="succeeded",
    message="7 tokens (max tokens)",
    sample=SampleResult(text=TEXT, tokens=7, ended=SampleEnd.MAX_TOKENS),
)


@BRINGS_CODE
def test_a_text_comes_back_as_it_was_drawn(yard: Yard, context: Context) -> None:
    job_id, _ = yard.harness.running(step=9, env={"HF_TOKEN": "hf_secret"})
    checkpoint = yard.harness.commit_checkpoint(job_id, 4)
    request = SampleRequest(prompt="def ", max_tokens=7, temperature=0, seed=3)
    operation_id = service.sample(context, checkpoint, request, actor=ADA)
    assert service.sample(context, checkpoint, request, actor=EVE) == operation_id
    yard.give()
    asked = yard.claim(operation_id).task.sample
    assert asked is not None
    assert (asked.prompt, asked.max_tokens, asked.temperature, asked.seed) == ("def ", 7, 0, 3)
    assert (asked.spec.name, asked.spec.env) == ("tiny", {})  # no secret leaves for a text
    with pytest.raises(ConflictError, match=r"\(sample, requested by ada\) is running"):
        deletion.delete(context, checkpoint, actor=ADA)
    yard.report(operation_id, outcome=DONE)
    view = yard.operation(operation_id)
    assert view.outcome is not None
    assert view.outcome.sample == DONE.sample
    another = request.model_copy(update={"seed": 4})
    assert service.sample(context, checkpoint, another, actor=ADA) != operation_id


def test_code_of_a_job_runs_only_where_the_settings_allow_it(yard: Yard, context: Context) -> None:
    settings = context.settings.model_copy(update={"allow_code": True})
    allowing = replace(context, settings=settings)
    harness = Harness(allowing, yard.harness.clock)
    job_id, _ = harness.running(step=9, model={"factory": "gpt:build", "code": "data:own"})
    checkpoint = harness.commit_checkpoint(job_id, 4)
    with pytest.raises(ConflictError, match="TRAINYARD_ALLOW_CODE=true"):
        service.sample(context, checkpoint, SampleRequest(), actor=ADA)
    service.sample(allowing, checkpoint, SampleRequest(), actor=ADA)
    assert yard.operations()[0].task.read("task").other_roots == {"data"}
