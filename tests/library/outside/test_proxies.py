"""The proxy of a URL: none for this machine, and none from a misspelled variable."""

from __future__ import annotations

import socket
import urllib.request
from pathlib import Path

import httpx
import pytest

from trainyard.outside import proxies
from trainyard.outside.proxies import (
    ProxyError,
    _warn_of,
    for_other_readers,
    is_this_machine,
    proxy_of,
    without_login,
)

PROXY = "http://proxy.test:3128"
ALL = {"HTTP_PROXY": PROXY, "HTTPS_PROXY": PROXY, "ALL_PROXY": PROXY}


@pytest.mark.parametrize("variable", ["http_proxy", "https_proxy", "all_proxy"])
@pytest.mark.parametrize("spelling", [str.lower, str.upper])
@pytest.mark.parametrize(
    "host",
    [
        *("localhost.localdomain", "localhost6", "ip6-localhost", "ip6-loopback"),
        *("localhost", "LocalHost", "localhost.", "a.localhost", "127.0.0.1", "127.0.0.2", "127.1"),
        *("127.255.255.254", "0x7f.1", "2130706433", "0.0.0.0", "0", "[::1]", "[::]"),
        *("[::ffff:127.0.0.1]", "[0:0:0:0:0:0:0:1]", socket.gethostname()),
    ],
)
def test_this_machine_is_reached_without_a_proxy(
    variable: str, spelling: type[str], host: str
) -> None:
    for scheme in ("http", "https"):
        for value in (PROXY, "gopher://nonsense", "socks5://127.0.0.1:1080"):
            set_to = {spelling(variable): value, "NO_PROXY": "[:"}
            assert proxy_of(f"{scheme}://{host}:8470/api", set_to, socks=False) is None


@pytest.mark.parametrize(
    "host", ["server.test", "10.1.2.3", "[2001:db8::7]", "127.0.0.1.test", "1.1.1.1"]
)
def test_another_machine_is_reached_through_the_proxy_of_its_scheme(host: str) -> None:
    set_to = {"HTTP_PROXY": "http://one:1", "https_proxy": "http://two:2", "ALL_PROXY": "three:3"}
    assert proxy_of(f"http://{host}/", set_to, socks=False) == "http://one:1"
    assert proxy_of(f"https://{host}:8470/", set_to, socks=False) == "http://two:2"
    assert proxy_of(f"http://{host}/", {"all_proxy": "three:3"}, socks=False) == "http://three:3"
    assert proxy_of(f"https://{host}/", {"HTTP_PROXY": PROXY}, socks=False) is None


def test_small_letters_come_first_and_an_empty_variable_names_nothing() -> None:
    set_to = {"http_proxy": "http://small:1", "HTTP_PROXY": "http://large:1"}
    assert proxy_of("http://a.test/", set_to, socks=False) == "http://small:1"
    assert proxy_of("http://a.test/", {**set_to, "http_proxy": " "}, socks=False) is None


@pytest.mark.parametrize(
    ("no_proxy", "excepted", "not_excepted"),
    [
        ("a.test", ["a.test", "x.a.test", "A.test", "a.test."], ["ba.test", "a.test.b"]),
        (".a.test", ["a.test", "x.a.test"], ["ba.test"]),
        ("*.a.test,10.0.0.0/8", ["x.a.test", "10.9.9.9"], ["11.0.0.1"]),
        ("10.0.0.1 2001:db8::/32", ["10.0.0.1", "[2001:db8::1]"], ["10.0.0.10", "[2001:db9::1]"]),
        ("[2001:db8::1]", ["[2001:db8::1]", "[2001:db8:0::1]"], ["[2001:db8::2]"]),
        ("a.test:81,[2001:db8::1]:81", ["a.test:81", "[2001:db8::1]:81"], ["a.test:82", "a.test"]),
        ("a.test:80", ["a.test"], ["a.test:81"]),
        ("http://a.test", ["a.test"], ["b.test"]),
        ("*", ["a.test", "10.0.0.1"], []),
        (" , ,", [], ["a.test"]),
    ],
)
def test_hosts_that_no_proxy_excepts(
    no_proxy: str, excepted: list[str], not_excepted: list[str]
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        set_to = {**ALL, name: no_proxy}
        found = {host: proxy_of(f"http://{host}/", set_to, socks=False) for host in excepted}
        assert found == dict.fromkeys(excepted)
        for host in not_excepted:
            assert proxy_of(f"http://{host}/", set_to, socks=False) == PROXY


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("gopher://ada:secret@proxy:70", "no kind of proxy is named 'gopher'"),
        ("socks5://ada:secret@127.0.0.1:1080", "socks5 needs support for SOCKS"),
        ("socks4://ada:secret@127.0.0.1:1080", "no kind of proxy is named 'socks4'"),
        ("http://ada:secret@", "no host, or no port"),
        ("ada:secret://more@proxy", "no kind of proxy is named ''"),
        ("http://ada:secret@proxy:port", "no host, or no port"),
        ("http://ada:secret@proxy:70000", "no host, or no port"),
        ("http://ada:sec/ret@proxy:3128", "no host, or no port"),
        ("http://ada:secret@[::1", "no host, or no port"),
        ("http://ada:secret@proxy:3128/path", "more than a host and a port"),
        ("http://ada:secret@pro xy:3128", "a space, or a character"),
        ("http://ada:secret@pro\nxy:3128", "a space, or a character"),
        ("://", "no kind of proxy is named ''"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_one_line_without_its_login(value: str, why: str) -> None:
    with pytest.raises(ProxyError) as caught:
        proxy_of("http://a.test/", {"HTTP_PROXY": value}, socks=False)
    text = str(caught.value)
    assert text.startswith("HTTP_PROXY=")
    assert why in text
    assert "legal: http://[USER:PASSWORD@]HOST[:PORT], https://" in text
    assert "sec" not in text.partition("legal")[0].replace("needs support", "")
    assert "\n" not in text


@pytest.mark.parametrize(
    "word",
    [
        "10.*.1",
        "999.*",
        "[",
        "[::1",
        "c/d",
        "10.0.0.0/99",
        "a:b:c",
        "a.test:x",
        "<local>;*.a.test",
        "~a",
        "1.2.3.4.*",
    ],
)
def test_an_exception_that_is_no_host_matches_none_and_is_named_once(
    word: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Like in curl, requests and Go: the valid parts of the variable count."""
    _warn_of.cache_clear()
    set_to = {**ALL, "NO_PROXY": f"{word},b.test"}
    for host in ("a.test", "10.1.2.3", "1.2.3.4", "c"):
        assert proxy_of(f"http://{host}/", set_to, socks=False) == PROXY
    assert proxy_of("http://b.test/", set_to, socks=False) is None
    assert for_other_readers(set_to, socks=False)["no_proxy"].startswith("b.test,localhost")
    (message,) = caplog.messages
    assert message.startswith(f"NO_PROXY: {word!r} is no host and matches none; legal: hosts, ")


@pytest.mark.parametrize("word", ["10.*", "10.1.*", "10.1.2.*", "10.*.*.*", "10.*:80"])
def test_stars_after_octets_are_a_network(word: str) -> None:
    set_to = {**ALL, "NO_PROXY": word}
    assert proxy_of("http://10.1.2.3/", set_to, socks=False) is None
    assert proxy_of("http://11.1.2.3/", set_to, socks=False) == PROXY
    assert proxy_of("http://10.a.test/", set_to, socks=False) == PROXY


def test_socks_is_legal_where_it_is_supported() -> None:
    set_to = {"ALL_PROXY": "socks5h://127.0.0.1:1080"}
    assert proxy_of("https://a.test/", set_to, socks=True) == "socks5h://127.0.0.1:1080"
    with pytest.raises(ProxyError, match="socks5h://"):
        proxy_of("https://a.test/", {"ALL_PROXY": "x://a"}, socks=True)


def test_names_of_the_hosts_file_are_this_machine_where_their_address_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.1.1 yard.test yard # the yard\n10.255.255.1 far.test\nnonsense\n")
    monkeypatch.setattr(proxies, "HOSTS", hosts)
    assert is_this_machine("Yard.test")
    assert is_this_machine("yard")
    assert not is_this_machine("far.test")
    assert not is_this_machine("the")
    assert not is_this_machine("unknown.test")


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("http://proxy:3128", "http://proxy:3128"),
        ("http://a:b@c@proxy:3128", "http://proxy:3128"),
        ("a:b@proxy", "proxy"),
    ],
)
def test_a_proxy_is_shown_without_its_login(url: str, seen: str) -> None:
    assert without_login(url) == seen


def test_a_library_that_reads_the_variables_itself_leaves_this_machine_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = {
        "HTTP_PROXY": PROXY,
        "NO_PROXY": "[2001:db8::1], a.test, 10.0.0.0/8, 2001:db8::/32, [::1]:80",
    }
    for name, value in (given | for_other_readers(given, socks=False)).items():
        monkeypatch.setenv(name, value)
    assert all(urllib.request.proxy_bypass(f"{h}:1") for h in ("127.0.0.1", "localhost", "a.test"))
    assert not urllib.request.proxy_bypass("b.test:1")
    httpx.Client().close()  # it reads them here, and refuses unreadable ones
    with pytest.raises(ProxyError, match="ALL_PROXY='socks5://a:1'"):
        for_other_readers({"ALL_PROXY": "socks5://a:1"}, socks=False)
