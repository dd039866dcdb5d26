"""Calls of the SDK for users, their invitations, and tokens by password."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trainyard.client.transport import Transport, given, read
from trainyard.protocol.rest.access import Permission, TokenView
from trainyard.protocol.rest.common import Page
from trainyard.protocol.user_accounts.device_flow import DeviceLogin
from trainyard.protocol.user_accounts.views import ClusterRole, InvitationView, UserView


class UserCalls:
    """Calls of `Client` for users. All except `password_token` need `users:admin`."""

    transport: Transport
    """Sends the requests."""

    def users(self) -> Iterator[UserView]:
        """Iterate over the users in the order of their names."""
        return self.transport.pages(Page[UserView], "/users")

    def user_named(self, name: str) -> UserView | None:
        """Return the user of this name; None if there is none."""
        query = {"name": name}
        return next(self.transport.pages(Page[UserView], "/users", query), None)

    def invite_user(
        self, name: str, *, email: str | None = None, role: ClusterRole | str | None = None
    ) -> InvitationView:
        """Create a user; only this reply contains the code with which the user sets a password.

        Raises:
            ConflictError: a user has, or had, this name.
        """
        body = given(name=name, email=email, role=None if role is None else str(role))
        return self.transport.post(InvitationView, "/users", body)

    def reset_user(self, user_id: str) -> InvitationView:
        """Make a new invitation of a user, which ends earlier ones."""
        return self.transport.post(InvitationView, f"/users/{user_id}/invitation")

    def unlink_user(self, user_id: str) -> None:
        """Remove the identity of a user at the issuer; its sessions, tokens and roles end."""
        self.transport.send("DELETE", f"/users/{user_id}/identity")

    def change_user(self, user_id: str, **changes: Any) -> UserView:
        """Change a user; omitted fields stay.

        Args:
            user_id: id of the user.
            changes: fields of `trainyard.protocol.user_accounts.views.UserChange`.
        """
        response = self.transport.send("PATCH", f"/users/{user_id}", body=changes)
        return read(UserView, response)

    def begin_device_login(
        self,
        host: str,
        *,
        scopes: Sequence[Permission | str] | None = None,
        expires_in_seconds: int | None = None,
    ) -> DeviceLogin:
        """Begin a login that a person approves in a browser.

        Args:
            host: name of this machine.
            scopes: permissions of the token; by default all of a token without scopes.
            expires_in_seconds: lifetime of the token; by default 30 days.
        """
        body = given(
            host=host,
            scopes=None if scopes is None else [str(each) for each in scopes],
            expires_in_seconds=expires_in_seconds,
        )
        return self.transport.post(DeviceLogin, "/auth/device", body)

    def device_token(self, device_code: str) -> TokenView:
        """Return the token of an approved device; only this reply contains the `secret`.

        Raises:
            ApiError: the device gets no token now; `problem.type` ends with the error of RFC 8628.
        """
        return self.transport.post(TokenView, "/auth/device/token", {"device_code": device_code})

    def password_token(
        self,
        name: str,
        password: str,
        *,
        token_name: str,
        expires_in_seconds: int | None = None,
    ) -> TokenView:
        """Create an API token by name and password; only this reply contains the `secret`.

        Args:
            name: name of the user.
            password: password of the user.
            token_name: purpose of the token.
            expires_in_seconds: lifetime of the token; by default a year.
        """
        body = given(
            name=name,
            password=password,
            token_name=token_name,
            expires_in_seconds=expires_in_seconds,
        )
        return self.transport.post(TokenView, "/auth/token", body)
