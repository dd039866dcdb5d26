"""Calls of the SDK for members, service accounts and secrets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainyard.client.transport import Transport, given, read
from trainyard.protocol.rest.access import Permission, TokenView
from trainyard.protocol.rest.common import Page
from trainyard.protocol.rest.jobs import JobView
from trainyard.protocol.rest.projects import ProjectRole, ProjectView
from trainyard.protocol.user_accounts.members import MemberView, ServiceAccountView
from trainyard.protocol.user_accounts.secret_views import SecretView
from trainyard.protocol.user_accounts.single_sign_on import GroupView


class MemberCalls:
    """Calls of `Client` for members. Changes need `members:write` in the project."""

    transport: Transport
    """Sends the requests."""

    def members(self, project: str) -> Iterator[MemberView]:
        """Iterate over the members of a project in the order of their names."""
        return self.transport.pages(Page[MemberView], f"/projects/{project}/members")

    def set_member(
        self, project: str, user: str, role: ProjectRole | str, **limits: int | None
    ) -> MemberView:
        """Give a user a role in a project, and own limits; the role replaces a former role.

        Args:
            project: name of the project.
            user: name of the user.
            role: role in the project.
            limits: `max_slots` and `max_running`; omitted limits stay, and None removes one.

        Raises:
            NotFoundError: there is no such user or visible project.
            InvalidRequestError: `max_slots` is above that of the project.
        """
        path, body = f"/projects/{project}/members/{user}", {"role": str(role), **limits}
        return read(MemberView, self.transport.send("PUT", path, body=body))

    def remove_member(self, project: str, user: str) -> None:
        """End the membership of a user."""
        self.transport.send("DELETE", f"/projects/{project}/members/{user}")

    def limit_users(self, project: str, **limits: int | None) -> ProjectView:
        """Change the limits of each user of a project who has no own limits.

        `limits` are `max_slots` and `max_running`; omitted limits stay, and None removes one.

        Raises:
            InvalidRequestError: `max_slots` is above that of the project.
        """
        response = self.transport.send("PATCH", f"/projects/{project}/limits", body=limits)
        return read(ProjectView, response)

    def set_everyone(self, project: str, role: ProjectRole | str | None) -> ProjectView:
        """Give every active person a role in a project, or take it away with None."""
        body = {"role": None if role is None else str(role)}
        response = self.transport.send("PUT", f"/projects/{project}/everyone", body=body)
        return read(ProjectView, response)

    def groups(self, project: str) -> Iterator[GroupView]:
        """Iterate over the issuer's groups with a role in a project, sorted by name."""
        return self.transport.pages(Page[GroupView], f"/projects/{project}/groups")

    def set_group(self, project: str, group: str, role: ProjectRole | str | None) -> None:
        """Give the persons of a group of the issuer a role, or take it away with None."""
        body = {"group": group, "role": None if role is None else str(role)}
        self.transport.send("PUT", f"/projects/{project}/groups", body=body)

    def set_owner(self, job_id: str, owner: str) -> JobView:
        """Give a job to another user who may submit jobs in its project."""
        return self.transport.post(JobView, f"/jobs/{job_id}/owner", {"owner": owner})

    def service_accounts(self, project: str) -> Iterator[ServiceAccountView]:
        """Iterate over the service accounts of a project in the order of their names."""
        path = f"/projects/{project}/service-accounts"
        return self.transport.pages(Page[ServiceAccountView], path)

    def create_service_account(
        self, project: str, name: str, *, role: ProjectRole | str | None = None
    ) -> ServiceAccountView:
        """Create a service account, by default with the role `member`.

        Raises:
            ConflictError: an account of the project has, or had, this name.
        """
        body = given(name=name, role=None if role is None else str(role))
        path = f"/projects/{project}/service-accounts"
        return self.transport.post(ServiceAccountView, path, body)

    def remove_service_account(self, project: str, account: str) -> None:
        """End a service account and its tokens for good."""
        self.transport.send("DELETE", _path(project, account))

    def service_token(
        self,
        project: str,
        account: str,
        *,
        name: str,
        scopes: Sequence[Permission | str] | None = None,
        expires_in_seconds: int | None = None,
    ) -> TokenView:
        """Create a token of a service account; only this reply contains the `secret`.

        Args:
            project: name of the project.
            account: name of the service account, with or without `@` and the project.
            name: purpose of the token.
            scopes: permissions of the token; by default all of the account.
            expires_in_seconds: lifetime of the token; by default a year.
        """
        body = given(
            name=name,
            scopes=None if scopes is None else [str(each) for each in scopes],
            expires_in_seconds=expires_in_seconds,
        )
        return self.transport.post(TokenView, f"{_path(project, account)}/tokens", body)

    def service_tokens(self, project: str, account: str) -> Iterator[TokenView]:
        """Iterate over the tokens of a service account, the newest first, without their secrets."""
        return self.transport.pages(Page[TokenView], f"{_path(project, account)}/tokens")

    def revoke_service_token(self, project: str, account: str, token_id: str) -> None:
        """Revoke a token of a service account."""
        self.transport.send("DELETE", f"{_path(project, account)}/tokens/{token_id}")


def _path(project: str, account: str) -> str:
    name = account if "@" in account else f"{account}@{project}"
    return f"/projects/{project}/service-accounts/{name}"


class SecretCalls:
    """Calls of `Client` for secrets. No reply contains a value."""

    transport: Transport
    """Sends the requests."""

    def secrets(self, project: str | None = None) -> Iterator[SecretView]:
        """Iterate over the secrets of a project, or without one over your own, by name."""
        return self.transport.pages(Page[SecretView], _secrets_of(project))

    def set_secret(self, name: str, value: str, *, project: str | None = None) -> SecretView:
        """Store a new version of a secret.

        Args:
            name: name of the secret.
            value: value of 1 byte to 64 KiB in UTF-8, without NUL.
            project: project of the secret; None for an own secret.
        """
        path = f"{_secrets_of(project)}/{name}"
        return read(SecretView, self.transport.send("PUT", path, body={"value": value}))

    def delete_secret(self, name: str, *, project: str | None = None) -> None:
        """Delete all versions of a secret; jobs that refer to it no longer start.

        Raises:
            NotFoundError: there is no such secret.
        """
        self.transport.send("DELETE", f"{_secrets_of(project)}/{name}")


def _secrets_of(project: str | None) -> str:
    return "/users/me/secrets" if project is None else f"/projects/{project}/secrets"
