"""Samples: what a node is given for one, what comes back, and whose code may run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from server.chores import service, uses
from server.context import Context
from server.errors import ConflictError
from tests.actors import ADA, EVE
from tests.server.chores.conftest import Yard
from tests.server.harness import BRINGS_CODE, Harness
from trainyard.protocol.chores import ChoreOutcome, SampleEnd, SampleResult
from trainyard.protocol.rest.chores import SampleRequest

TEXT = "def \x00\x1b[2J é"
DONE = ChoreOutcome(
    outcome="succeeded",
    message="7 tokens (max tokens)",
    sample=SampleResult(text=TEXT, tokens=7, ended=SampleEnd.MAX_TOKENS),
)


@BRINGS_CODE
def test_a_text_comes_back_as_it_was_drawn(yard: Yard, context: Context) -> None:
    job_id, _ = yard.harness.running(step=9, env={"HF_TOKEN": "hf_secret"})
    checkpoint = yard.harness.commit_checkpoint(job_id, 4)
    request = SampleRequest(prompt="def ", max_tokens=7, temperature=0, seed=3)
    chore_id = uses.sample(context, checkpoint, request, actor=ADA)
    assert uses.sample(context, checkpoint, request, actor=EVE) == chore_id
    yard.give()
    asked = yard.claim(chore_id).task.sample
    assert asked is not None
    assert (asked.prompt, asked.max_tokens, asked.temperature, asked.seed) == ("def ", 7, 0, 3)
    assert (asked.spec.name, asked.spec.env) == ("tiny", {})  # no secret leaves for a text
    with pytest.raises(ConflictError, match=r"\(sample, asked for by ada\) is running"):
        service.delete(context, checkpoint, actor=ADA)
    yard.report(chore_id, outcome=DONE)
    view = yard.chore(chore_id)
    assert view.outcome is not None
    assert view.outcome.sample == DONE.sample
    another = request.model_copy(update={"seed": 4})
    assert uses.sample(context, checkpoint, another, actor=ADA) != chore_id


def test_code_of_a_job_runs_only_where_the_settings_allow_it(yard: Yard, context: Context) -> None:
    settings = context.settings.model_copy(update={"allow_code": True})
    allowing = replace(context, settings=settings)
    harness = Harness(allowing, yard.harness.clock)
    job_id, _ = harness.running(step=9, model={"factory": "gpt:build", "code": "data:own"})
    checkpoint = harness.commit_checkpoint(job_id, 4)
    with pytest.raises(ConflictError, match="TRAINYARD_ALLOW_CODE=true"):
        uses.sample(context, checkpoint, SampleRequest(), actor=ADA)
    uses.sample(allowing, checkpoint, SampleRequest(), actor=ADA)
    assert yard.chores()[0].task.other_roots == {"data"}
