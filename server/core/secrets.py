"""Encryption of `env` values and secrets, and signatures, with keys from a file."""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from pydantic import ValidationError

from server.core.errors import UnavailableError, UnreadableError
from trainyard.base.redaction import MASK
from trainyard.run.atomic import create_file, replace_file
from trainyard.spec.environment import Environment, SecretReference, is_allowed
from trainyard.spec.job import JobSpec

KEPT_KEYS = 2
"""Number of keys kept after a rotation: the newest, and the one that other processes used during
the rotation.
"""


SealedEnv = Mapping[str, Any]
"""Variables by name, each with an encrypted value, or with a reference to a secret as JSON."""


class _Keys(NamedTuple):
    """The keys of the file, for each use; what one encrypted, the other does not decrypt."""

    env: MultiFernet
    """For values of `env`: a member chooses these texts, so they could imitate a purpose."""
    text: MultiFernet
    """For texts with a purpose, such as secrets. Derived from the keys of the file."""


class KeyFileError(UnavailableError):
    """The key file is missing or damaged, or none of its keys decrypts a value."""


class SecretsBox:
    """Encrypts with the first key of a file and decrypts with every key of the file.

    The method is Fernet: AES-128-CBC and HMAC. The file has one key per line. Every process of the
    server needs the same file, and reads it again after a change.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read: tuple[tuple[int, int], _Keys] | None = None

    def create(self) -> bool:
        """Write a first key, readable only by its owner; return False if the file exists."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return create_file(self.path, _new_key() + "\n", mode=0o600)

    def add_key(self) -> None:
        """Put a new key first in the file; raise `KeyFileError` if the file has no valid keys."""
        _ = self._keys
        self._replace([_new_key(), *self._lines()])

    def forget_old_keys(self) -> None:
        """Drop all keys except the newest `KEPT_KEYS`; rotate every value first."""
        self._replace(self._lines()[:KEPT_KEYS])

    def seal(self, env: Environment) -> dict[str, Any] | None:
        """Return an environment with encrypted values; None for an empty environment.

        Raises:
            KeyFileError: the key file is missing or damaged.
        """
        return {name: self._sealed(value) for name, value in env.items()} or None

    def open(self, sealed: SealedEnv | None) -> dict[str, str | SecretReference]:
        """Return an environment with decrypted values, as it was submitted.

        Raises:
            KeyFileError: the key file is missing or damaged, or none of its keys decrypts a value.
        """
        return {
            name: self._decrypt(self._keys.env, value, f"env.{name}")
            if isinstance(value, str)
            else _reference(name, value)
            for name, value in (sealed or {}).items()
        }

    def restore(self, spec: JobSpec, sealed: SealedEnv | None) -> JobSpec:
        """Return a stored spec with its submitted environment.

        Raises:
            KeyFileError: the key file is missing or damaged, or none of its keys decrypts a value.
        """
        return spec.model_copy(update={"env": self.open(sealed)}) if sealed else spec

    def shown(self, sealed: SealedEnv | None) -> dict[str, str | SecretReference]:
        """Return an environment for a view, with values outside the allow-list masked.

        If a value cannot be decrypted, all values are masked. References are shown.
        """
        references = references_of(sealed)
        try:
            env = self.open(sealed)
        except KeyFileError:
            return {**dict.fromkeys(sealed or {}, MASK), **references}
        return {
            name: value if not isinstance(value, str) or is_allowed(name, value) else MASK
            for name, value in env.items()
        }

    def seal_text(self, text: str, *, purpose: str) -> str:
        """Return an encrypted text, such as a page token that its reader must not understand.

        Raises:
            KeyFileError: the key file is missing or damaged.
        """
        return _encrypt(self._keys.text, f"{purpose}\n{text}")

    def open_text(self, sealed: str, *, purpose: str) -> str | None:
        """Return a text that `seal_text` encrypted for the same purpose; otherwise None.

        Raises:
            KeyFileError: the key file is missing or damaged.
        """
        try:
            given, _, text = self._keys.text.decrypt(sealed).decode().partition("\n")
        except InvalidToken:
            return None
        return text if given == purpose else None

    def open_bound(self, sealed: str, *, purpose: str, name: str) -> str | None:
        """Return a text that `seal_text` encrypted for this purpose; None if for another one.

        Args:
            sealed: a text that this server has stored.
            purpose: the purpose.
            name: words for the error.

        Raises:
            KeyFileError: the key file is missing or damaged, or none of its keys decrypts the text.
        """
        given, _, text = self._decrypt(self._keys.text, sealed, name).partition("\n")
        return text if given == purpose else None

    def sign(self, content: bytes, *, purpose: str) -> str:
        """Return a signature with the newest key: HMAC-SHA256 in hexadecimal digits.

        The key of the signature is derived for its purpose, so that no other signature and no
        encrypted value of a client can take its place.

        Raises:
            KeyFileError: the key file is missing or damaged.
        """
        return _signature(self._valid_lines()[0], purpose, content)

    def has_signed(self, content: bytes, signature: str | None, *, purpose: str) -> bool:
        """Return whether `sign` with a key of the file made a signature.

        Raises:
            KeyFileError: the key file is missing or damaged.
        """
        given = (signature or "").encode()
        signed = [_signature(line, purpose, content) for line in self._valid_lines()]
        return any(hmac.compare_digest(each.encode(), given) for each in signed)

    def rotate(self, sealed: SealedEnv) -> dict[str, Any]:
        """Return an environment with its values decrypted, and encrypted again with the newest key.

        Raises:
            KeyFileError: the key file is missing or damaged, or none of its keys decrypts a value.
        """
        return self.seal(self.open(sealed)) or {}

    def rotate_text(self, sealed: str, name: str) -> str:
        """Return a text of `seal_text`, encrypted again with the newest key; `name` is for errors.

        Raises:
            KeyFileError: the key file is missing or damaged, or none of its keys decrypts the text.
        """
        keys = self._keys.text
        return _encrypt(keys, self._decrypt(keys, sealed, name))

    def _sealed(self, value: str | SecretReference) -> Any:
        if isinstance(value, str):
            return _encrypt(self._keys.env, value)
        return value.model_dump(mode="json", exclude_defaults=True)

    def _decrypt(self, keys: MultiFernet, token: str, name: str) -> str:
        try:
            return keys.decrypt(token).decode()
        except InvalidToken:
            raise KeyFileError(
                f"{name} cannot be decrypted: no key in {self.path} made it; put back the file "
                "with which it was stored"
            ) from None

    @property
    def _keys(self) -> _Keys:
        """The keys of the file, which is read again after a change."""
        try:
            stat = self.path.stat()
            seen = (stat.st_mtime_ns, stat.st_ino)
            if self._read is None or self._read[0] != seen:
                lines = self._lines()
                env = MultiFernet([Fernet(line) for line in lines])
                derived = [urlsafe_b64encode(_derived(line, "text")) for line in lines]
                self._read = (seen, _Keys(env, MultiFernet([Fernet(key) for key in derived])))
        except OSError as error:
            raise KeyFileError(
                f"values of env and secrets cannot be read or stored without {self.path}: "
                f"{error.strerror}; put the file back"
            ) from None
        except ValueError as error:
            raise KeyFileError(f"{self.path} holds no keys: {error}; put the file back") from None
        return self._read[1]

    def _valid_lines(self) -> list[str]:
        _ = self._keys
        return self._lines()

    def _lines(self) -> list[str]:
        return self.path.read_text(encoding="ascii").split()

    def _replace(self, keys: list[str]) -> None:
        replace_file(self.path, "\n".join(keys) + "\n", mode=0o600)


def references_of(sealed: SealedEnv | None) -> dict[str, SecretReference]:
    """Return the references to secrets in a stored environment, by variable; needs no key.

    Raises:
        UnreadableError: another version wrote a reference.
    """
    return {
        name: _reference(name, value)
        for name, value in (sealed or {}).items()
        if not isinstance(value, str)
    }


def _reference(name: str, stored: Any) -> SecretReference:
    try:
        return SecretReference.model_validate(stored)
    except ValidationError:
        raise UnreadableError(f"the stored env.{name} cannot be read") from None


def _encrypt(keys: MultiFernet, value: str) -> str:
    return keys.encrypt(value.encode()).decode()


def _signature(line: str, purpose: str, content: bytes) -> str:
    return hmac.digest(_derived(line, purpose), content, "sha256").hex()


@lru_cache(maxsize=16)
def _derived(line: str, purpose: str) -> bytes:
    """Return the key of a line of the file for one purpose, by HKDF of RFC 5869."""
    derivation = HKDF(SHA256(), length=32, salt=None, info=f"trainyard {purpose}".encode())
    return derivation.derive(urlsafe_b64decode(line))


def _new_key() -> str:
    return Fernet.generate_key().decode()
