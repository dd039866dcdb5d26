"""Calls to an object store: retried by the library, bounded in time, refused as `OSError`."""

from __future__ import annotations

import asyncio
import errno
import os
from concurrent.futures import Future
from functools import cache
from typing import Any

CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0
"""Silence after which a request has failed; a part that is on its way counts as silence too."""
ATTEMPTS = 8
"""Tries of a request that fails for a reason that may pass; `AWS_MAX_ATTEMPTS` sets another."""

# errno.EIO is not among them: from a disk it means damage, and no network error does.
_CODES = {
    **dict.fromkeys(("404", "NoSuchKey", "NoSuchUpload"), errno.ENOENT),
    "NoSuchBucket": errno.ENXIO,
    **dict.fromkeys(("412", "PreconditionFailed", "ConditionalRequestConflict"), errno.EEXIST),
    **dict.fromkeys(("403", "AccessDenied", "AllAccessDisabled", "InvalidToken"), errno.EACCES),
    **dict.fromkeys(("InvalidAccessKeyId", "SignatureDoesNotMatch"), errno.EACCES),
    **dict.fromkeys(("ExpiredToken", "RequestTimeTooSkewed"), errno.EACCES),
    **dict.fromkeys(("429", "503", "SlowDown", "Throttling", "ServiceUnavailable"), errno.EBUSY),
}
_WORDS = {
    errno.ENOENT: "there is no such object",
    errno.ENXIO: "there is no such bucket",
    errno.EEXIST: "it exists already",
    errno.EACCES: "access denied",
    errno.EBUSY: "the object store refuses so many requests",
    errno.EREMOTEIO: "the object store has failed",
    errno.EPROTO: "the object store refuses the request",
}


def call(method: str, path: str, **arguments: Any) -> dict[str, Any]:
    """Make a call of S3's interface and return its answer.

    Args:
        method: as botocore names it, such as `put_object`.
        path: what is named in errors.
        arguments: of the method.

    Raises:
        OSError: it was refused, or not answered in any attempt; says why.
    """
    return wait(begin(method, **arguments), path)


def begin(method: str, **arguments: Any) -> Future[dict[str, Any]]:
    """Begin a call, which goes on beside; `wait` returns its answer."""
    system = _system()
    return asyncio.run_coroutine_threadsafe(system._call_s3(method, **arguments), system.loop)


def wait(begun: Future[Any], path: str) -> Any:
    """Wait for a call that was begun.

    Raises:
        OSError: as `call`.
    """
    try:
        return begun.result()
    except Exception as error:
        raise os_error(error, path) from error


def begin_reading(bucket: str, key: str, *, start: int, end: int) -> Future[bytes]:
    """Begin to read the bytes from `start` up to `end`.

    The library retries until an answer begins; one that breaks off is asked for again here.
    """
    system = _system()

    async def read() -> bytes:
        failure: Exception = OSError(errno.EREMOTEIO, "the object store sends too few bytes")
        for attempt in range(_attempts()):
            await asyncio.sleep(min(0.1 * 2**attempt, 5.0) if attempt else 0)
            span = f"bytes={start}-{end - 1}"
            answer = await system._call_s3("get_object", Bucket=bucket, Key=key, Range=span)
            try:
                async with answer["Body"] as stream:
                    body: bytes = await stream.read()
            except Exception as error:  # noqa: BLE001 -- raised below when it does not pass
                failure = error
                continue
            if len(body) == end - start:
                return body
        raise failure

    return asyncio.run_coroutine_threadsafe(read(), system.loop)


@cache
def _system() -> Any:
    import s3fs  # an extra; half a second that only who has a bucket waits for

    system = s3fs.S3FileSystem(
        skip_instance_cache=True,
        use_listings_cache=False,
        config_kwargs={
            "connect_timeout": CONNECT_SECONDS,
            "read_timeout": READ_SECONDS,
            "retries": {"mode": "standard", "total_max_attempts": _attempts()},
        },
    )
    system.retries = 1  # botocore's are enough; these would multiply them
    return system


def _attempts() -> int:
    return int(os.environ.get("AWS_MAX_ATTEMPTS", ATTEMPTS))


def os_error(error: Exception, path: str) -> OSError:
    """Return what a failure of the libraries means, as an error of the system with its path."""
    from botocore.exceptions import (
        ClientError,
        CredentialRetrievalError,
        NoCredentialsError,
        ParamValidationError,
        PartialCredentialsError,
    )

    cause = error.__cause__ if isinstance(error.__cause__, ClientError) else error
    if isinstance(cause, ClientError):
        told = cause.response.get("Error", {})
        code = str(told.get("Code", ""))
        status = cause.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
        number = _CODES.get(code, errno.EREMOTEIO if status >= 500 else errno.EPROTO)
        detail = f"{code} {told.get('Message', '')}".strip()
        return OSError(number, f"{_WORDS[number]} ({detail})", path)
    if isinstance(error, NoCredentialsError | PartialCredentialsError | CredentialRetrievalError):
        remedy = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the node a role"
        return OSError(errno.EACCES, f"no credentials ({error}); {remedy}", path)
    if isinstance(error, ParamValidationError):
        return OSError(errno.EINVAL, f"it is refused ({error})", path)
    if isinstance(error, OSError) and error.errno is not None and error.strerror is not None:
        return OSError(error.errno, error.strerror, path)
    what = f"the object store does not answer ({type(error).__name__}: {error})"
    return OSError(errno.EHOSTUNREACH, what, path)
