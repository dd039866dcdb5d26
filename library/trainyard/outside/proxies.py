"""The proxy for a request, from the environment; a request to this machine has no proxy.

The variables are the ones of curl: `http_proxy`, `https_proxy`, `all_proxy` and `no_proxy`. The
name in capitals counts only if the name in small letters is not set (docs/client.md).
"""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

logger = logging.getLogger(__name__)
HOSTS = Path("/etc/hosts")
LOCAL_NAME = "localhost"
LOCAL_NAMES = re.compile(r"(.+\.)?localhost[46]?(\.localdomain[46]?)?|ip6-(localhost|loopback)")
"""Names that resolve to loopback addresses, from RFC 6761, nss-myhostname and Debian's hosts."""
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
"""Pattern of a URL's scheme (RFC 3986). Text before `://` that does not match may be part of a
password."""
HTTP_SCHEMES, SOCKS_SCHEMES = ("http", "https"), ("socks5", "socks5h")
DEFAULT_PORTS = {"http": 80, "https": 443}
HOST_NAME = re.compile(r"[\w-]+(\.[\w-]+)*\.?")
OCTETS = re.compile(r"(?=.*\*)\d{1,3}(\.\d{1,3}){0,2}(\.\*){1,3}")
"""First octets of an IPv4 address followed by `*`, as Java and Windows write a network."""
MAX_SHOWN = 200
"""Maximum number of characters of a variable's value in an error."""

Address = IPv4Address | IPv6Address


class ProxyError(ValueError):
    """A variable names no usable proxy; the error's text shows the value without its login."""


@dataclass(frozen=True)
class _Variable:
    """An environment variable that is set."""

    name: str
    """Name of the variable, spelled as in the environment."""
    value: str
    """Value of the variable without surrounding spaces."""

    def error(self, why: str, legal: str) -> ProxyError:
        """Return the error for the variable's value."""
        shown = without_login(self.value)[:MAX_SHOWN]
        return ProxyError(f"{self.name}={shown!r}: {why}; legal: {legal}")


def proxy_of(url: str, environment: Mapping[str, str], *, socks: bool) -> str | None:
    """Return the URL of the proxy for a URL; None if no proxy applies.

    A URL of this machine has no proxy, so tokens for it never leave the machine. No variable is
    checked for such a URL.

    Args:
        url: absolute URL with a host.
        environment: environment variables of the process.
        socks: whether the client supports SOCKS.

    Raises:
        ProxyError: a variable that applies to the URL is invalid.
    """
    parts = urlsplit(url)
    proxy = _find(f"{parts.scheme}_proxy", environment) or _find("all_proxy", environment)
    if proxy is None or is_this_machine(parts.hostname or ""):
        return None
    if _is_excepted(parts, environment):
        return None
    return _checked(proxy, socks=socks)


def names_proxy(environment: Mapping[str, str]) -> bool:
    """Return whether any environment variable names a proxy."""
    names = ("http_proxy", "https_proxy", "all_proxy")
    return any(_find(name, environment) for name in names)


def for_other_readers(environment: Mapping[str, str], *, socks: bool) -> dict[str, str]:
    """Return `no_proxy` in both spellings, for a library that reads the variables itself.

    The value includes this machine, in a form that every such library accepts, and omits networks
    of IPv6 addresses.

    Raises:
        ProxyError: a variable is invalid.
    """
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        if (proxy := _find(name, environment)) is not None:
            _checked(proxy, socks=socks)
    found = _find("no_proxy", environment)
    entries = [] if found is None else _entries(found)
    # httpx cannot read a network of IPv6 addresses.
    given = [_bare(entry) for entry in entries if not (":" in entry.host and "/" in entry.host)]
    own = [LOCAL_NAME, "127.0.0.1", "::1", "0.0.0.0", socket.gethostname().lower()]
    value = ",".join(dict.fromkeys([*given, *own]))
    return {"no_proxy": value, "NO_PROXY": value}


def without_login(proxy: str) -> str:
    """Return the URL of a proxy without its login; a password may contain `@`."""
    login, at, host = proxy.rpartition("@")
    if not at:
        return proxy
    scheme, separator, _ = login.partition("://")
    return f"{scheme}{separator}{host}" if separator and SCHEME.fullmatch(scheme) else host


def is_this_machine(host: str) -> bool:
    """Return whether a host is this machine.

    Names of this machine are `localhost`, names below `localhost`, the machine's own name, and
    names that `/etc/hosts` maps only to addresses of this machine. The own name with another domain
    is resolved, and counts if all its addresses are of this machine. No other name is resolved.
    Addresses of this machine are loopback addresses, unspecified addresses and the addresses of its
    interfaces, in every form, such as `127.1`.
    """
    name = host.strip("[]").rstrip(".").lower()
    if LOCAL_NAMES.fullmatch(name):
        return True
    address = _address(name)
    if address is not None:
        return _is_own(address)
    own = socket.gethostname().lower()
    if name in (own, _label(own)):
        return True
    found = _addresses_of(name) or (_looked_up(name) if _label(name) == _label(own) else [])
    return bool(found) and all(map(_is_own, found))


def _find(name: str, environment: Mapping[str, str]) -> _Variable | None:
    """Return a variable, preferably the one in small letters; None if it is unset or empty."""
    for spelling in (name, name.upper()):
        if spelling in environment:
            value = environment[spelling].strip()
            return _Variable(spelling, value) if value else None
    return None


def _checked(proxy: _Variable, *, socks: bool) -> str:
    """Return the proxy URL in a variable, with its scheme.

    Raises:
        ProxyError: the value is not the URL of a proxy that the client can use.
    """
    schemes = HTTP_SCHEMES + (SOCKS_SCHEMES if socks else ())
    legal = ", ".join(f"{scheme}://[USER:PASSWORD@]HOST[:PORT]" for scheme in schemes)
    url = proxy.value if "://" in proxy.value else f"http://{proxy.value}"
    scheme = url.partition("://")[0].lower()
    if scheme in SOCKS_SCHEMES and not socks:
        raise proxy.error(f"{scheme} needs support for SOCKS, which is not installed here", legal)
    if scheme not in schemes:
        named = scheme[:20] if SCHEME.fullmatch(scheme) else ""
        raise proxy.error(f"no kind of proxy is named {named!r}", legal)
    if any(not " " < character < "\x7f" for character in url):
        raise proxy.error("a space, or a character that is not of ASCII", legal)
    try:
        parts = urlsplit(url)
        is_complete = bool(parts.hostname) and parts.port != 0
    except ValueError:  # the error's text may contain part of a password
        is_complete = False
    if not is_complete:
        raise proxy.error("no host, or no port from 1 to 65535", legal)
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise proxy.error(
            "more than a host and a port", f"{legal}; write / ? # in a password as %2F %3F %23"
        )
    return url


def _is_excepted(parts: SplitResult, environment: Mapping[str, str]) -> bool:
    """Return whether `no_proxy` excludes a URL."""
    variable = _find("no_proxy", environment)
    if variable is None:
        return False
    host = (parts.hostname or "").rstrip(".")
    port = parts.port or DEFAULT_PORTS.get(parts.scheme)
    entries = _entries(variable)  # all entries, so that the first request reports a wrong entry
    return any(_matches(entry, host, port) for entry in entries)


@dataclass(frozen=True)
class _Entry:
    """An entry of `no_proxy`."""

    host: str
    """An address, a network, `*` for all hosts, or a name without leading and trailing dots."""
    port: int | None


def _entries(variable: _Variable) -> list[_Entry]:
    """Return the entries of `no_proxy`; ignore entries that are no host, as curl and Go do."""
    found = []
    for word in filter(None, re.split(r"[,\s]+", variable.value)):
        entry = _entry(word)
        if entry is None:
            _warn_of(variable.name, without_login(word)[:MAX_SHOWN])
        else:
            found.append(entry)
    return found


@cache  # one warning per process
def _warn_of(name: str, word: str) -> None:
    logger.warning(
        "%s: %r is no host and matches none; legal: hosts, addresses and networks (10.0.0.0/8)"
        " by commas, or *",
        name,
        word,
    )


def _entry(word: str) -> _Entry | None:
    """Parse an entry; None if it is no host. An entry with a port covers only this port."""
    host, port = word.partition("://")[2] or word, None
    if (found := re.fullmatch(r"(\[[^\]]*\]|[^:\[\]]+):(\d{1,5})", host)) is not None:
        host, port = found[1], int(found[2])
    bracketed = re.fullmatch(r"\[([^\[\]]*)\]", host)
    host = (bracketed[1] if bracketed else host).lower()
    if OCTETS.fullmatch(host):  # 10.* and 10.*.*.*: a network
        octets = [octet for octet in host.split(".") if octet != "*"]
        host = f"{'.'.join([*octets, *['0'] * (4 - len(octets))])}/{8 * len(octets)}"
    if host == "*" or _network(host):
        return _Entry(host, port)
    name = host.removeprefix("*").strip(".")
    return _Entry(name, port) if HOST_NAME.fullmatch(name) else None


def _bare(entry: _Entry) -> str:
    return entry.host if entry.port is None or ":" in entry.host else f"{entry.host}:{entry.port}"


def _matches(entry: _Entry, host: str, port: int | None) -> bool:
    if entry.port not in (None, port):
        return False
    if entry.host == "*":
        return True
    network, address = _network(entry.host), _address(host)
    if network is not None:
        return address is not None and address in network
    return host == entry.host or host.endswith(f".{entry.host}")


def _network(text: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None


def _address(host: str) -> Address | None:
    """Parse a host as an address, including the short forms of IPv4; None for a name."""
    with suppress(ValueError):
        found = ip_address(host)
        return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found
    with suppress(OSError, ValueError):
        return IPv4Address(socket.inet_aton(host))
    return None


def _is_own(address: Address) -> bool:
    """Return whether packets to an address stay on this machine."""
    if address.is_loopback or address.is_unspecified:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as trial:
            trial.connect((str(address), 9))  # sends nothing; the kernel chooses the source
            return ip_address(str(trial.getsockname()[0])) == address
    except OSError:
        return False


def _label(name: str) -> str:
    return name.partition(".")[0]


def _looked_up(name: str) -> list[Address]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return []
    addresses = [_address(str(each[4][0])) for each in found]
    return [address for address in addresses if address is not None]


def _addresses_of(name: str) -> list[Address]:
    """Return the addresses of a name in `/etc/hosts`."""
    try:
        lines = HOSTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    words = [line.partition("#")[0].lower().split() for line in lines]
    found = [_address(word[0]) for word in words if name in word[1:]]
    return [address for address in found if address is not None]
