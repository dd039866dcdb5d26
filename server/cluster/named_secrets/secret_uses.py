"""References of jobs to secrets: who may use them, and the versions that an attempt gets.

A job refers to secrets of its project, and to secrets of the user who owns it. The references are
checked when a person queues an attempt, and again when the attempt is placed. The placement chooses
the versions, so that all nodes of an attempt get the same values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, ClassVar

from sqlalchemy import Connection, Table, or_, select, tuple_

from server.api.auth.principals import scopes_of_users
from server.cluster.named_secrets.queries import SecretHolder, names_of
from server.cluster.named_secrets.service import purpose_of
from server.core.context import Context
from server.core.database.rows import LaunchedJob, TypedRow
from server.core.errors import ForbiddenError, InvalidRequestError
from server.core.people.secret_tables import secret_versions, secrets
from server.core.secrets import KeyFileError, references_of
from server.core.subject import ADMIN_USER_ID, SYSTEM, Actor
from trainyard.base.problems import Problem
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.user_accounts.secret_views import DeliveredSecret
from trainyard.spec.environment import SecretReference, secret_references
from trainyard.spec.job import JobSpec

MAX_DELIVERED_BYTES = 512 * 1024
"""Maximum size of all values of an attempt, in bytes. Linux accepts a quarter of the stack, 2 MiB,
for arguments and variables together."""
SECRETS_REMEDY = (
    "Store the secret again, give the owner of the job a role, or transfer the job; then resume it."
)
NAMES_LISTED = 20
"""Maximum number of names in the error for an unknown secret."""


@dataclass(frozen=True)
class SecretUse:
    """The references of a job, with whose secrets they are."""

    references: Mapping[str, SecretReference]
    """References, by variable."""
    project: str
    """Project of the job."""
    owner_id: str
    """User who owns the job."""

    @classmethod
    def of_new_job(cls, spec: JobSpec, actor: Actor) -> SecretUse:
        """Return the references of a job that an actor submits, and then owns."""
        return cls(secret_references(spec.env), spec.project, actor.owner_id)

    @classmethod
    def of_job(cls, job: LaunchedJob) -> SecretUse:
        """Return the references of a stored job; raises `UnreadableError`."""
        return cls(references_of(job.env), job.project, job.owner_id)

    @property
    def of_owner(self) -> dict[str, SecretReference]:
        """The references to secrets of the owner, by variable."""
        return {name: each for name, each in self.references.items() if each.of == "owner"}

    def key(self, reference: SecretReference) -> tuple[str, str, str]:
        """Return kind and name of the holder, and the name of the secret."""
        holder = self.project if reference.of == "project" else self.owner_id
        return reference.of, holder, reference.secret


SecretValues = Mapping[str, str] | list[Problem] | KeyFileError
"""Values by variable; or why the attempt must not start; or why a value is unreadable now."""


class ChosenSecret(DeliveredSecret):
    """A version that all nodes of an attempt get."""

    secret_id: str
    """Id of the secret."""


@dataclass(frozen=True, slots=True)
class _StoredVersion(TypedRow):
    """A stored version, with the holder of its secret."""

    table: ClassVar[Table] = secret_versions
    secret_id: str
    version: int
    name: Annotated[str, secrets.c.name]
    project: Annotated[str | None, secrets.c.project]
    user_id: Annotated[str | None, secrets.c.user_id]

    @property
    def key(self) -> tuple[str, str, str]:
        """The key of `SecretUse.key`."""
        if self.project is not None:
            return "project", self.project, self.name
        return "owner", self.user_id or "", self.name


def check_use(
    context: Context,
    connection: Connection,
    use: SecretUse,
    *,
    actor: Actor,
    token_id: str | None,
) -> None:
    """Refuse an attempt whose secrets do not exist, or that the actor may not use.

    Call this before the job or its next attempt is stored. Parts of the system queue only attempts
    that a person has queued before, so they are not checked.

    Args:
        context: the context.
        connection: a transaction.
        use: the references of the job.
        actor: who queues the attempt.
        token_id: the token that submitted the job; it counts for jobs of the built-in user.

    Raises:
        ForbiddenError: the actor lacks `secrets:use` in the project, or the job gets secrets of its
            owner, and the actor is another person. The error names each variable.
        InvalidRequestError: the project or the owner has no such secret or version.
    """
    if not use.references or actor in SYSTEM:
        return
    if not actor.scope.may(Permission.SECRETS_USE, use.project):
        problems = _problems(use.references, f"needs {Permission.SECRETS_USE}")
        raise actor.refusal(Permission.SECRETS_USE, problems, project=use.project)
    if use.of_owner and not actor.may_act_for(use.owner_id, token_id):
        problems = _problems(use.of_owner, "is a secret of the job's owner")
        named = ", ".join(f"{v}={r.secret!r}" for v, r in use.of_owner.items())
        raise ForbiddenError(
            f"the job gets secrets of its owner ({named}): only the owner, and the admin token, "
            "may start it again",
            problems,
        )
    _, wrong = chosen(connection, {"": use}, context.now())
    if wrong:
        legal = _legal(connection, use)
        raise InvalidRequestError.of(
            Problem(pointer=each.pointer, detail=f"{each.detail}; legal: {legal}")
            for each in wrong[""]
        )


def chosen(
    connection: Connection, uses: Mapping[str, SecretUse], now: datetime
) -> tuple[dict[str, list[ChosenSecret]], dict[str, list[Problem]]]:
    """Choose the versions for the next attempts of jobs, in two queries.

    Args:
        connection: a transaction.
        uses: the references of each job, by any key.
        now: the present time.

    Returns:
        The versions of the jobs that may start; and for each other job what is wrong.
    """
    stored = _stored(connection, uses.values())
    owners = {(use.owner_id, use.project) for use in uses.values()}
    may = owners_who_may_use(connection, owners, now)
    found: dict[str, list[ChosenSecret]] = {}
    wrong: dict[str, list[Problem]] = {}
    for key, use in uses.items():
        if (use.owner_id, use.project) not in may:
            wrong[key] = without_right(use.references, use.project)
            continue
        versions = {
            variable: stored.get(use.key(reference), {})
            for variable, reference in use.references.items()
        }
        problems = [
            Problem(pointer=f"/env/{variable}", detail=detail)
            for variable, reference in use.references.items()
            if (detail := _wrong(reference, versions[variable], use=use)) is not None
        ]
        if problems:
            wrong[key] = problems
            continue
        found[key] = [
            ChosenSecret(
                variable=variable,
                name=reference.secret,
                of=reference.of,
                version=version,
                secret_id=versions[variable][version],
            )
            for variable, reference in use.references.items()
            for version in (reference.version or max(versions[variable]),)
        ]
    return found, wrong


def opened(
    context: Context, connection: Connection, attempts: Mapping[str, Sequence[ChosenSecret]]
) -> dict[str, SecretValues]:
    """Decrypt the values for attempts, in one query.

    An unreadable value affects only the attempts that need it.

    Args:
        context: the server's context.
        connection: a transaction.
        attempts: the chosen versions, by any key.

    Returns:
        The values of each attempt by variable. For an attempt that must not start, what is wrong:
        a version was deleted, its ciphertext is that of another secret, or the values are too
        large. A `KeyFileError` if no key decrypts a value, or the key file is missing or damaged.
    """
    by_key = {(each.secret_id, each.version): each for some in attempts.values() for each in some}
    columns = (secret_versions.c.secret_id, secret_versions.c.version)
    query = select(*columns, secret_versions.c.ciphertext)
    rows = connection.execute(query.where(tuple_(*columns).in_(sorted(by_key)))).all()
    values = {
        (row.secret_id, row.version): _opened(
            context, row.ciphertext, by_key[row.secret_id, row.version]
        )
        for row in rows
    }
    return {key: _values(some, values) for key, some in attempts.items()}


def _opened(context: Context, ciphertext: str, secret: ChosenSecret) -> str | KeyFileError | None:
    """Return the value of a version, or the error; None if it was encrypted for another one."""
    purpose = purpose_of(secret.secret_id, secret.version)
    name = f"version {secret.version} of the secret {secret.name!r}"
    try:
        return context.secrets.open_bound(ciphertext, purpose=purpose, name=name)
    except KeyFileError as error:
        return error


def _values(
    some: Sequence[ChosenSecret],
    values: Mapping[tuple[str, int], str | KeyFileError | None],
) -> SecretValues:
    found: dict[str, str] = {}
    wrong: list[Problem] = []
    for each in some:
        value = values.get((each.secret_id, each.version), "")
        if isinstance(value, KeyFileError):
            return value
        if value:
            found[each.variable] = value
            continue
        detail = f"version {each.version} of the secret {each.name!r} " + (
            "was deleted" if value == "" else "is damaged: its stored value is of another secret"
        )
        wrong.append(Problem(pointer=f"/env/{each.variable}", detail=detail))
    size = sum(len(value.encode()) for value in found.values())
    if size > MAX_DELIVERED_BYTES:
        detail = f"the secrets have {size:,} bytes; legal: at most {MAX_DELIVERED_BYTES:,}"
        wrong.append(Problem(pointer="/env", detail=detail))
    return wrong or found


def owners_who_may_use(
    connection: Connection, pairs: Collection[tuple[str, str]], now: datetime
) -> set[tuple[str, str]]:
    """Return the pairs of owner and project whose owner is active and may use secrets there."""
    scopes = scopes_of_users(connection, {owner_id for owner_id, _ in pairs}, now)
    may = Permission.SECRETS_USE
    return {
        (owner_id, project)
        for owner_id, project in pairs
        if owner_id in scopes and scopes[owner_id].may(may, project)
    }


def without_right(variables: Iterable[str], project: str) -> list[Problem]:
    """Return what is wrong with a job whose owner may not use its secrets."""
    detail = f"the owner of the job has no {Permission.SECRETS_USE} in project {project!r}"
    return [Problem(pointer=f"/env/{variable}", detail=detail) for variable in variables]


def in_words(problems: Iterable[Problem]) -> str:
    """Return problems with variables as one text."""
    return "; ".join(f"{p.pointer[1:].replace('/', '.')}: {p.detail}" for p in problems)


def _stored(
    connection: Connection, uses: Collection[SecretUse]
) -> dict[tuple[str, str, str], dict[int, str]]:
    """Return the stored versions with the ids of their secrets, by the key of the secret."""
    keys = {use.key(reference) for use in uses for reference in use.references.values()}
    columns = {"project": secrets.c.project, "owner": secrets.c.user_id}
    wanted = [
        tuple_(columns[kind], secrets.c.name).in_(
            sorted({(holder, name) for of, holder, name in keys if of == kind})
        )
        for kind in columns
        if any(of == kind for of, _, _ in keys)
    ]
    query = _StoredVersion.select().join(secrets, secrets.c.id == secret_versions.c.secret_id)
    found: dict[tuple[str, str, str], dict[int, str]] = {}
    for row in _StoredVersion.all(connection, query.where(or_(*wanted))):
        found.setdefault(row.key, {})[row.version] = row.secret_id
    return found


def _wrong(
    reference: SecretReference, versions: Mapping[int, str], *, use: SecretUse
) -> str | None:
    """Return what is wrong with a reference, given the stored versions; None if nothing is."""
    named = repr(reference.secret)
    if reference.of == "owner" and use.owner_id == ADMIN_USER_ID:
        return f"{named}: the built-in user has no own secrets; use one of the project"
    whose = f"project {use.project!r}" if reference.of == "project" else "the owner of the job"
    if not versions:
        return f"{whose} has no secret {named}"
    if reference.version is not None and reference.version not in versions:
        kept = ", ".join(map(str, sorted(versions)))
        return f"the secret {named} of {whose} has no version {reference.version}, only {kept}"
    return None


def _legal(connection: Connection, use: SecretUse) -> str:
    """Return the names of the secrets that a job may refer to."""
    of_project = names_of(connection, SecretHolder(project=use.project), NAMES_LISTED)
    words = ", ".join(of_project) or "none of the project"
    if not use.of_owner:
        return words
    own = names_of(connection, SecretHolder(user_id=use.owner_id), NAMES_LISTED)
    return f"{words}; of the owner: {', '.join(own) or 'none'}"


def _problems(references: Mapping[str, SecretReference], words: str) -> list[Problem]:
    return [
        Problem(pointer=f"/env/{variable}", detail=f"{reference.secret!r} {words}")
        for variable, reference in references.items()
    ]
