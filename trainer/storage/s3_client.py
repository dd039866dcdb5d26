"""Calls to an object store: botocore retries them, their time is limited, errors are `OSError`."""

from __future__ import annotations

import asyncio
import errno
import os
from concurrent.futures import Future
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from trainyard.outside.proxies import ProxyError, names_proxy, proxy_of

CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0
"""Socket timeout of a request, in seconds. A request may send a whole part, so the timeout also
sets a minimum upload speed.
"""
ATTEMPTS = 8
"""Maximum number of tries for a request with a transient error; `AWS_MAX_ATTEMPTS` overrides it."""

# Never errno.EIO: from a disk it signals damage, which no network error proves.
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
    """Make a call of the S3 API; return its response.

    Args:
        method: botocore's name of the method, such as `put_object`.
        path: path for error messages.
        arguments: arguments of the method.

    Raises:
        OSError: the object store rejected the call or did not respond; the error has the cause.
    """
    return wait(begin(method, **arguments), path)


def begin(method: str, **arguments: Any) -> Future[dict[str, Any]]:
    """Start a call asynchronously; `wait` returns its response."""
    system = _system()
    return asyncio.run_coroutine_threadsafe(system._call_s3(method, **arguments), system.loop)


def wait(begun: Future[Any], path: str) -> Any:
    """Wait for a call started by `begin` or `begin_reading`; raise OSError like `call`."""
    try:
        return begun.result()
    except Exception as error:
        raise os_error(error, path) from error


def begin_reading(bucket: str, key: str, *, start: int, end: int) -> Future[bytes]:
    """Start to read the bytes from `start` up to, but not including, `end`.

    botocore retries only until a response starts. If the body of the response breaks off, this
    function repeats the request.
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
    import s3fs  # optional, and takes 0.5 s: only for runs with a bucket

    system = s3fs.S3FileSystem(
        skip_instance_cache=True,
        use_listings_cache=False,
        config_kwargs={
            "connect_timeout": CONNECT_SECONDS,
            "read_timeout": READ_SECONDS,
            "retries": {"mode": "standard", "total_max_attempts": _attempts()},
            **_proxies(),
        },
    )
    system.retries = 1  # s3fs's own retries would multiply botocore's retries
    return system


def _proxies() -> dict[str, dict[str, str]]:
    """Return the client's proxy settings for the object store; empty if no variable names a proxy.

    Without these settings, botocore would use the proxy even for an object store on this machine.

    Raises:
        OSError: the proxy that a variable names for the object store cannot be used.
    """
    # Like botocore, ignore `all_proxy`: it may, for example, name a SOCKS proxy for interactive
    # tools.
    environment = {name: os.environ[name] for name in os.environ if name.lower() != "all_proxy"}
    if not names_proxy(environment):
        return {}
    import botocore.session

    endpoint = botocore.session.Session().create_client("s3").meta.endpoint_url
    try:
        proxy = proxy_of(endpoint, environment, socks=False)
    except ProxyError as error:
        raise OSError(errno.EINVAL, str(error), endpoint) from None
    return {"proxies": {urlsplit(endpoint).scheme: proxy} if proxy else {}}


def _attempts() -> int:
    return int(os.environ.get("AWS_MAX_ATTEMPTS", ATTEMPTS))


def os_error(error: Exception, path: str) -> OSError:
    """Return an `OSError` with the path, as a replacement for a library's error."""
    from botocore.exceptions import (
        ClientError,
        CredentialRetrievalError,
        NoCredentialsError,
        ParamValidationError,
        PartialCredentialsError,
    )

    cause = error.__cause__ if isinstance(error.__cause__, ClientError) else error
    if isinstance(cause, ClientError):
        answer = cause.response.get("Error", {})
        code = str(answer.get("Code", ""))
        status = cause.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
        number = _CODES.get(code, errno.EREMOTEIO if status >= 500 else errno.EPROTO)
        detail = f"{code} {answer.get('Message', '')}".strip()
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
