"""Secrets at rest and in answers: encrypted, masked, rotated, and unreadable without their key."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
import sqlalchemy as sa
from cryptography.fernet import Fernet

from server.__main__ import main
from server.app.keys import ensure_key, rotate
from server.core.context import Context
from server.core.database.engine import Database
from server.core.database.schema import metadata
from server.core.database.tables import notices
from server.core.errors import InvalidRequestError
from server.core.secrets import KeyFileError, SecretsBox
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.checkpoints import service
from server.jobs.jobs import fork
from server.jobs.jobs.planning import plan_job
from server.jobs.jobs.queries import job_view
from server.jobs.jobs.service import stop
from tests.actors import ADA
from tests.server.claims import claim
from tests.server.clock import FakeClock
from tests.server.harness import BRINGS_CODE, WORKER, Harness
from tests.server.submit import submit
from trainyard.protocol.rest.checkpoints import ForkRequest, SampleRequest
from trainyard.spec.job import JobSpec, parse_job_spec

SECRET = "hunter2-in-plain-sight"
ENV = {"A_TOKEN": SECRET, "NCCL_DEBUG": "INFO"}


def spec(**sections: object) -> JobSpec:
    return parse_job_spec({"name": "tiny"} | sections)


def shown(context: Context, job_id: str) -> JobSpec:
    return job_view(context, job_id, scope=SYSTEM_SCOPE).spec


def stored_text(context: Context) -> str:
    """Return every value of every table."""
    with context.database.read() as connection:
        return "\n".join(
            str(row)
            for table in metadata.sorted_tables
            for row in connection.execute(sa.select(sa.text("*")).select_from(table))
        )


def waiting_notice(context: Context, job_id: str) -> str:
    """Return the newest reason why a job waits."""
    chosen = sa.select(notices.c.data).where(
        notices.c.job_id == job_id, notices.c.kind == "waiting"
    )
    with context.database.read() as connection:
        return str(connection.execute(chosen).scalar_one()["reason"])


def changes(**env: str | None) -> ForkRequest:
    return ForkRequest.model_validate({"changes": {"env": env}})


# ---- at rest and in views -----------------------------------------------------------------------


@BRINGS_CODE
def test_no_table_holds_a_value_in_the_clear(context: Context, harness: Harness) -> None:
    harness.add_node()
    job_id = submit(context, spec(env=ENV), actor=ADA, idempotency_key="k").id
    assert harness.place() == 1
    (supervisor,) = harness.claim_all(job_id)
    assert supervisor.reply.spec == spec(env=ENV), "the ranks get what was submitted"
    supervisor.train(9)
    checkpoint = harness.commit_checkpoint(job_id, 4)
    service.sample(context, checkpoint, SampleRequest(), actor=ADA)
    wanted = changes(B_TOKEN=f"{SECRET}-2", NCCL_DEBUG=None)
    _, fork_id = fork.fork(context, checkpoint, wanted, actor=ADA, idempotency_key="f")
    assert context.secrets.open(harness.job(fork_id).env) == {
        "A_TOKEN": SECRET,
        "B_TOKEN": f"{SECRET}-2",
    }
    assert "A_TOKEN" in stored_text(context)
    assert SECRET not in stored_text(context)


@BRINGS_CODE
def test_views_show_values_of_the_allow_list_alone(context: Context) -> None:
    env = {**ENV, "TORCH_LOGS": f"+{SECRET}"}
    job_id = submit(context, spec(env=env), actor=ADA).id
    masked = {"A_TOKEN": "********", "NCCL_DEBUG": "INFO", "TORCH_LOGS": "********"}
    assert shown(context, job_id).env == masked


@BRINGS_CODE
def test_a_mask_that_is_submitted_back_is_refused_by_its_pointer(
    context: Context, harness: Harness
) -> None:
    harness.add_node()
    url = "https://ada:pass@host/x"
    job_id, (supervisor,) = harness.running(step=9, env=ENV, description=f"see {url}")
    again = shown(context, job_id)
    assert again.description == "see https://********@host/x"
    for act in (plan_job, submit):
        with pytest.raises(InvalidRequestError) as refusal:
            act(context, again, actor=ADA)
        assert [p.pointer for p in refusal.value.problems] == ["/description", "/env/A_TOKEN"]
    checkpoint = harness.commit_checkpoint(job_id, 4)
    stop(context, job_id, actor=ADA, reason="")
    supervisor.end("stopped")
    with pytest.raises(InvalidRequestError) as refusal:
        fork.preview(context, checkpoint, changes(A_TOKEN="********"), actor=ADA)
    assert [p.pointer for p in refusal.value.problems] == ["/changes/env/A_TOKEN"]


@BRINGS_CODE
def test_one_key_is_one_environment(context: Context, harness: Harness) -> None:
    harness.add_node()
    first = submit(context, spec(env=ENV), actor=ADA, idempotency_key="k").id
    assert submit(context, spec(env=ENV), actor=ADA, idempotency_key="k").id == first
    for other in ({**ENV, "A_TOKEN": "another"}, {}, {"A_TOKEN": SECRET}):
        with pytest.raises(InvalidRequestError, match="another body"):
            submit(context, spec(env=other), actor=ADA, idempotency_key="k")
    assert harness.place() == 1
    harness.claim_all(first)[0].train(9)
    checkpoint = harness.commit_checkpoint(first, 4)
    wanted = changes(A_TOKEN="new", NCCL_DEBUG=None)
    _, forked = fork.fork(context, checkpoint, wanted, actor=ADA, idempotency_key="f")
    again = fork.fork(context, checkpoint, wanted, actor=ADA, idempotency_key="f")
    assert again[1] == forked
    for request in (changes(A_TOKEN="other", NCCL_DEBUG=None), changes(), ForkRequest()):
        with pytest.raises(InvalidRequestError, match="another body"):
            fork.fork(context, checkpoint, request, actor=ADA, idempotency_key="f")


# ---- the file of the keys -----------------------------------------------------------------------


@BRINGS_CODE
def test_without_its_key_a_job_waits_and_names_the_file(
    context: Context, harness: Harness, clock: FakeClock
) -> None:
    harness.add_node(slots=8)
    job_id = submit(context, spec(env=ENV), actor=ADA).id
    path = context.secrets.path
    kept = path.read_bytes()
    for content in (None, Fernet.generate_key(), b"no key\n"):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        error = ensure_key(context)
        assert error is not None
        assert str(path) in error
        assert path.exists() == (content is not None), "a lost key is not replaced"
        assert shown(context, job_id).env == dict.fromkeys(ENV, "********")
        plain = submit(context, spec(), actor=ADA).id
        harness.place()
        assert (harness.job(job_id).state, harness.job(plain).state) == ("queued", "starting")
        assert str(path) in harness.job(job_id).reason
        assert waiting_notice(context, job_id) == harness.job(job_id).reason
        clock.advance(20)
        harness.place()
        assert waiting_notice(context, job_id) == harness.job(job_id).reason, "still"
        clock.advance(20)
        if content is None or content.startswith(b"no"):
            with pytest.raises(KeyFileError, match=re.escape(str(path))):
                submit(context, spec(env=ENV), actor=ADA)
    path.write_bytes(kept)
    assert ensure_key(context) is None
    assert harness.place() == 1
    assert harness.claim_all(job_id)[0].reply.spec.env == ENV


@BRINGS_CODE
def test_a_key_that_is_lost_after_placing_refuses_the_claim(
    context: Context, harness: Harness
) -> None:
    node = harness.add_node()
    job_id = submit(context, spec(env=ENV), actor=ADA).id
    assert harness.place() == 1
    context.secrets.path.unlink()
    with pytest.raises(KeyFileError) as refusal:
        claim(context, harness.attempt(job_id).id, node=node, worker=WORKER)
    assert refusal.value.status == 503
    assert harness.attempt(job_id).state == "placed", "it is claimed when the file is back"


@BRINGS_CODE
def test_rotation_encrypts_anew_and_drops_keys_after_a_second_one(
    context: Context, harness: Harness
) -> None:
    ids = [submit(context, spec(env={**ENV, "N": str(n)}), actor=ADA).id for n in range(3)]
    plain = submit(context, spec(), actor=ADA).id
    path = context.secrets.path
    first, tokens = path.read_text(), [harness.job(one).env for one in ids]
    running = SecretsBox(path)  # another process, which has read the file
    assert running.open(tokens[0])["A_TOKEN"] == SECRET
    assert rotate(context) == 3
    assert path.stat().st_mode & 0o777 == 0o600
    rotated = [harness.job(one).env for one in ids]
    assert not {t["A_TOKEN"] for t in tokens} & {r["A_TOKEN"] for r in rotated}
    for number, sealed in enumerate(rotated):
        assert running.open(sealed) == {**ENV, "N": str(number)}
        assert SecretsBox(path).open(sealed) == {**ENV, "N": str(number)}
    assert path.read_text().split()[1:] == first.split()
    assert rotate(context) == 3
    assert first.strip() not in path.read_text()
    with pytest.raises(KeyFileError, match="no key in"):
        running.open(tokens[0])
    assert harness.job(plain).env is None


@BRINGS_CODE
def test_a_rotation_that_cannot_read_a_value_changes_nothing(
    context: Context, harness: Harness
) -> None:
    job_id = submit(context, spec(env=ENV), actor=ADA).id
    sealed, kept = harness.job(job_id).env, context.secrets.path.read_text()
    context.secrets.path.write_text(Fernet.generate_key().decode())
    with pytest.raises(KeyFileError, match=r"env.A_TOKEN cannot be decrypted"):
        rotate(context)
    assert harness.job(job_id).env == sealed
    context.secrets.path.write_text(kept)
    assert context.secrets.open(sealed) == ENV


def test_the_command_rotates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRAINYARD_DATABASE_URL", f"sqlite:///{tmp_path / 'a.db'}")
    monkeypatch.setenv("TRAINYARD_STATE_DIR", str(tmp_path / "state"))
    assert main(["migrate"]) == 0
    assert main(["rotate-key"]) == 0
    path = tmp_path / "state" / "secrets.key"
    assert f"0 jobs are encrypted with a new key in {path}" in capsys.readouterr().out
    assert (path.stat().st_mode & 0o777, len(path.read_text().split())) == (0o600, 2)
    path.write_text("nonsense")
    assert main(["rotate-key"]) == 1


# ---- what was stored before ---------------------------------------------------------------------


def test_a_database_file_and_its_folder_are_for_their_owner(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    names = ("trainyard.db", "trainyard.db-wal", "trainyard.db-shm")
    for name in names[:1]:
        (folder / name).touch(0o644)
    database = Database(f"sqlite:///{folder / names[0]}")
    with database.write() as connection:
        connection.exec_driver_sql("CREATE TABLE a (b)")
        assert {(folder / name).stat().st_mode & 0o777 for name in names} == {0o600}
        for name in names:  # in the form of a former version
            (folder / name).chmod(0o644)
        folder.chmod(0o755)
        caplog.set_level(logging.WARNING)
        Database(f"sqlite:///{folder / names[0]}").dispose()
        assert {(folder / name).stat().st_mode & 0o777 for name in names} == {0o600}
        assert folder.stat().st_mode & 0o777 == 0o700
    database.dispose()
    assert caplog.text == ""


def test_a_shared_folder_keeps_its_mode(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    Database(f"sqlite:///{folder / 'a.db'}").dispose()
    assert folder.stat().st_mode & 0o7777 == 0o1777


def test_no_text_passes_for_a_value_of_another_use(context: Context) -> None:
    """A member chooses values of `env`, so one could name the purpose of a secret."""
    box = context.secrets
    forged = box.seal({"A": "secret 01/1\nforged"})
    assert forged is not None
    with pytest.raises(KeyFileError, match="the secret 'a' cannot be decrypted"):
        box.open_bound(forged["A"], purpose="secret 01/1", name="the secret 'a'")
    assert box.open_text(forged["A"], purpose="secret 01/1") is None
    sealed = box.seal_text("value", purpose="secret 01/1")
    with pytest.raises(KeyFileError, match=r"env\.A cannot be decrypted"):
        box.open({"A": sealed})
    assert box.open_bound(sealed, purpose="secret 01/1", name="a") == "value"
    box.add_key()
    rotated = box.rotate_text(sealed, "a")
    box.add_key()
    box.forget_old_keys()
    assert box.open_text(rotated, purpose="secret 01/1") == "value"
    assert box.open_text(sealed, purpose="secret 01/1") is None
