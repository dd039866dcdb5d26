"""`save`, `profile` and `snapshot`: requests to a running trainer, and its answers."""

from __future__ import annotations

import threading
import time

import pytest

from tests.library.conftest import Run, Yard
from tests.server.api.serving import PATIENCE
from tests.server.reports import send
from trainyard.run.records import Request, RequestAnswer


def test_what_is_asked_reaches_the_trainer(yard: Yard, run: Run) -> None:
    _, [supervisor] = yard.harness.running(name="busy")
    for words, expected in (
        (("save", "busy"), Request(kind="save")),
        (("profile", "busy", "--steps", "5"), Request(kind="profile", steps=5)),
        (("snapshot", "busy", "--all-ranks"), Request(kind="memory_snapshot", ranks="all")),
    ):
        assert "trainyard events" in run(*words).stdout
        (pending,) = send(yard.harness.context, supervisor).requests
        assert pending.request == expected
        answer = RequestAnswer(ok=True, message="done", step=1)
        send(yard.harness.context, supervisor, answers={pending.id: answer})


@pytest.mark.parametrize(("ok", "code"), [(True, 0), (False, 1)])
def test_an_answer_is_waited_for(yard: Yard, run: Run, ok: bool, code: int) -> None:
    _, [supervisor] = yard.harness.running(name="busy")
    context = yard.harness.context

    def play() -> None:
        deadline = time.monotonic() + PATIENCE
        while not (asked := send(context, supervisor).requests) and time.monotonic() < deadline:
            time.sleep(0.05)
        answer = RequestAnswer(ok=ok, message="profiles/steps-8-10.rank-0.json.gz", step=10)
        send(context, supervisor, answers={asked[0].id: answer})

    trainer = threading.Thread(target=play)
    trainer.start()
    result = run("profile", "busy", "--wait")
    trainer.join()
    assert result.exit_code == code
    assert result.stdout == "profiles/steps-8-10.rank-0.json.gz\n"


def test_a_job_that_does_not_run_cannot_be_asked(yard: Yard, run: Run) -> None:
    yard.harness.submit(name="waiting")
    result = run("save", "waiting")
    assert result.exit_code == 1
    assert "waiting is queued, not running" in result.stderr
    assert run("profile", "waiting", "--steps", "101").exit_code == 2
