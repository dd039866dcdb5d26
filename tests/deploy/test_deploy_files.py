"""The parsed deployment files: modules exist, settings are read, no port is open."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import tomllib
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner.base import Place
from provisioner.engines import open_engine
from provisioner.settings import read_sources
from server.core.settings import Settings as ServerSettings
from worker.node.users import RunAs
from worker.settings import Settings as WorkerSettings

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILES = sorted((ROOT / "deploy").glob("*.Dockerfile"))
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
DEPLOYMENT = (ROOT / "docs" / "deployment.md").read_text()
SEVERAL_SERVERS = (ROOT / "docs" / "several-servers.md").read_text()
INSTRUCTIONS = {"FROM", "ARG", "ENV", "WORKDIR", "COPY", "RUN", "USER", "EXPOSE", "CMD"}


def environment_names(settings: type[ServerSettings] | type[WorkerSettings]) -> set[str]:
    return {f"TRAINYARD_{name.upper()}" for name in settings.model_fields}


def instructions(path: Path) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile, continued lines joined."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    pairs = [line.split(maxsplit=1) for line in joined.splitlines() if line.strip()]
    return [(word, rest) for word, rest in pairs]


def modules_started(command: list[str]) -> str | None:
    """Return the module of `python -m MODULE ...`."""
    if command[:1] == ["setpriv"]:
        command = command[command.index("python") :]
    return command[2] if command[:2] == ["python", "-m"] else None


def test_the_whole_control_plane_is_there() -> None:
    assert SERVICES.keys() == {"postgres", "redis", "migrate", "server", "scheduler", "worker"}


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_service_starts_exists(name: str) -> None:
    module = modules_started(SERVICES[name].get("command", []))
    if name in {"postgres", "redis"}:
        assert module is None
    else:
        assert module is not None
        assert importlib.util.find_spec(f"{module}.__main__") is not None
        assert (ROOT / SERVICES[name]["build"]["dockerfile"]).is_file()


@pytest.mark.parametrize("name", SERVICES)
def test_settings_are_ones_that_are_read(name: str) -> None:
    given = {key for key in SERVICES[name].get("environment", {}) if key.startswith("TRAINYARD_")}
    known = environment_names(WorkerSettings if name == "worker" else ServerSettings)
    assert given <= known, given - known


def test_the_worker_has_no_way_to_the_database() -> None:
    assert "TRAINYARD_DATABASE_URL" not in SERVICES["worker"]["environment"]
    assert "postgres" not in json.dumps(SERVICES["worker"])


def test_passwords_are_files_of_the_group_that_reads_them() -> None:
    names = ("postgres-password", "redis-password", "join-token", "oidc-client-secret")
    folder = "${SECRETS_DIR:-./secrets}"
    assert COMPOSE["secrets"] == {name: {"file": f"{folder}/{name}"} for name in names}
    for services in (SERVICES, TWO_SERVERS["services"]):
        for name, service in services.items():
            given = service.get("environment", {})
            assert not [key for key in given if key.endswith(("_PASSWORD", "_TOKEN"))]
            assert "@" not in given.get("TRAINYARD_BROKER_URL", "")
            files = [value for key, value in given.items() if key.endswith("_FILE")]
            assert {Path(value).parent for value in files} <= {Path("/run/secrets")}
            merged = SERVICES.get(name, {}) | service
            assert {Path(value).name for value in files} <= {*merged.get("secrets", ())}
    made = set(re.findall(r"-g (\d+) -m 0440", DEPLOYMENT))
    (server,) = [
        rest
        for word, rest in instructions(ROOT / "deploy" / "server.Dockerfile")
        if word == "RUN" and "pip install" in rest
    ]
    assert made == {*re.findall(r"groupadd --gid (\d+)", server)}
    assert [f"--groups={group}" for group in made] == [
        word for word in SERVICES["worker"]["command"] if word.startswith("--groups")
    ]


def test_the_example_names_every_variable() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    example = dict(
        line.split("=", 1)
        for line in (ROOT / "deploy" / "example.env").read_text().splitlines()
        if line and not line.startswith("#")
    )
    asked_for = set(re.findall(r"(?<!\$)\$\{(\w+)", text))
    assert asked_for == example.keys() | {"NODE_NAME", "NODE_ADDRESS"}


def test_the_broker_is_the_first_process_and_not_root() -> None:
    shell, option, script = SERVICES["redis"]["command"]
    assert (shell, option) == ("sh", "-c")
    first = script.splitlines()[0]
    # The image's script changes to the user `redis`; a shell before it would get the order to stop.
    assert first.startswith("exec docker-entrypoint.sh redis-server - <<")
    assert "|" not in first


def test_the_database_is_healthy_once_it_listens() -> None:
    (_, words) = SERVICES["postgres"]["healthcheck"]["test"]
    assert "--host 127.0.0.1" in words, "a server that makes the database answers on the socket"


def test_images_get_the_wheels_alone() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules == ["*", "!dist"]
    copied = {rest for path in DOCKERFILES for word, rest in instructions(path) if word == "COPY"}
    assert copied == {"dist/trainyard_*.whl dist/constraints.txt ./"}


def test_only_the_server_listens_and_on_loopback_unless_told() -> None:
    assert {name for name, service in SERVICES.items() if "ports" in service} == {"server"}
    assert SERVICES["server"]["ports"] == ["${LISTEN:-127.0.0.1:8470}:8470"]


@pytest.mark.parametrize("name", sorted(SERVICES.keys() - {"postgres", "redis"}))
def test_our_services_drop_capabilities_and_gain_no_privileges(name: str) -> None:
    assert SERVICES[name]["cap_drop"] == ["ALL"]
    assert SERVICES[name]["security_opt"] == ["no-new-privileges:true"]


def test_the_output_of_every_container_is_bounded() -> None:
    for name, service in (TWO_SERVERS["services"] | SERVICES).items():
        options = service["logging"]["options"]
        assert options == {"max-size": "20m", "max-file": "5"}, name


def test_no_key_of_a_file_is_given_twice() -> None:
    """PyYAML silently takes the last one; Compose refuses the file."""

    class Strict(yaml.SafeLoader):
        pass

    def once(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        assert len(names) == len(set(names)), names
        loader.flatten_mapping(node)
        return loader.construct_mapping(node, deep=True)

    Strict.add_constructor("tag:yaml.org,2002:map", once)
    for path in (ROOT / "docker-compose.yml", *(ROOT / "deploy").glob("*.yml")):
        yaml.load(path.read_text(), Loader=Strict)


def test_volumes_and_dependencies_are_declared() -> None:
    for service in SERVICES.values():
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            assert source in COMPOSE["volumes"] or source.startswith(("${", ".", "/"))
        assert service.get("depends_on", {}).keys() <= SERVICES.keys()
        for needed, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[needed]


def test_the_gpu_overlay_changes_a_service_that_exists() -> None:
    overlay = yaml.safe_load((ROOT / "deploy" / "compose.gpu.yml").read_text())
    assert overlay["services"].keys() <= SERVICES.keys()
    given = overlay["services"]["worker"]["environment"]
    assert given == {"TRAINYARD_DEVICE": "cuda"}, "else it would offer CPU slots where a GPU fails"
    assert given.keys() <= environment_names(WorkerSettings)


TWO_SERVERS: dict[str, Any] = yaml.safe_load((ROOT / "deploy/compose.two-servers.yml").read_text())


def test_two_servers_and_two_schedulers_run_what_the_first_ones_run() -> None:
    added = TWO_SERVERS["services"]
    assert added.keys() - SERVICES.keys() == {"proxy", "server-2", "scheduler-2"}
    for name in ("server", "scheduler"):
        first, second = SERVICES[name], added[f"{name}-2"]
        same = ["image", "command", "env_file", "volumes", "read_only", "cap_drop", "security_opt"]
        same += ["healthcheck"] if "healthcheck" in first else []
        assert {key: second[key] for key in same} == {key: first[key] for key in same}
        assert second["secrets"] == first["secrets"]
        shared = {*COMPOSE["x-server"]["environment"]}
        assert {"TRAINYARD_DATABASE_URL", "TRAINYARD_STATE_DIR"} < shared
        for key in shared:
            assert second["environment"][key] == first["environment"][key]
    assert added["server"]["environment"] == added["server-2"]["environment"]
    assert added["server"]["environment"].keys() <= environment_names(ServerSettings)
    assert added["server"]["environment"].keys() == SERVICES["server"]["environment"].keys()
    assert "ports" not in added["server-2"]


def haproxy_sections(path: Path) -> dict[str, list[list[str]]]:
    """Return the words of each line of a HAProxy configuration, by section."""
    sections: dict[str, list[list[str]]] = {}
    for line in path.read_text().splitlines():
        words = shlex.split(line, comments=True)
        if words and not line[0].isspace():
            lines = sections.setdefault(" ".join(words), [])
        elif words:
            lines.append(words)
    return sections


def seconds(words: list[str], name: str) -> float:
    """Return the time that follows a word."""
    return float(words[words.index(name) + 1].removesuffix("s"))


PROXY: dict[str, Any] = TWO_SERVERS["services"]["proxy"]


@pytest.fixture(scope="module")
def haproxy() -> dict[str, list[list[str]]]:
    (mount,) = PROXY["volumes"]
    return haproxy_sections(ROOT / mount.split(":")[0])


def test_the_proxy_sends_to_every_api_server(haproxy: dict[str, list[list[str]]]) -> None:
    added = TWO_SERVERS["services"]
    targets = [words[1:] for words in haproxy["backend servers"] if words[0] == "server"]
    port = added["server"]["environment"]["TRAINYARD_PORT"]
    apis = [
        name
        for name, service in (SERVICES | added).items()
        if (SERVICES.get(name, {}) | service).get("command", [])[-1:] == ["api"]
    ]
    assert sorted(targets) == [[name, f"{name}:{port}"] for name in sorted(apis)]
    (bound,) = [words[1] for words in haproxy["frontend trainyard"] if words[0] == "bind"]
    assert PROXY["ports"][0].endswith(bound)
    assert added["worker"]["environment"] == {"TRAINYARD_URL": f"http://proxy{bound}"}


def test_the_proxy_outlives_a_stream_and_leaves_a_dead_server_in_time(
    haproxy: dict[str, list[list[str]]],
) -> None:
    defaults, backend = haproxy["defaults"], haproxy["backend servers"]
    timeouts = {words[1]: seconds(words, words[1]) for words in defaults if words[0] == "timeout"}
    stream_seconds = ServerSettings.model_fields["stream_seconds"].default
    assert min(timeouts["client"], timeouts["server"]) > stream_seconds
    assert ["option", "redispatch", "1"] in defaults, "else a refused connection is tried again"
    # `/readyz` fails with the database, and all open streams would be closed at once.
    assert ["option", "httpchk", "GET", "/healthz"] in backend
    (check,) = [words for words in backend if words[:2] == ["default-server", "check"]]
    assert check[check.index("on-marked-down") + 1] == "shutdown-sessions"
    # A check is due `inter` after the former one has ended, by its time limits at the latest.
    each = seconds(check, "inter") + timeouts["connect"] + timeouts["check"]
    found = re.search(r"within (\d+) seconds, it sends nothing more", SEVERAL_SERVERS)
    assert found is not None
    assert int(check[check.index("fall") + 1]) * each <= float(found[1])


def test_the_proxy_is_trusted_and_no_other_container_gets_its_address() -> None:
    address = IPv4Address(PROXY["networks"]["default"]["ipv4_address"])
    trusted = TWO_SERVERS["services"]["server"]["environment"]["TRAINYARD_TRUSTED_PROXIES"]
    others = SERVICES["server"]["environment"]["TRAINYARD_TRUSTED_PROXIES"]
    assert trusted == f"{address},{others}"
    (pool,) = TWO_SERVERS["networks"]["default"]["ipam"]["config"]
    subnet, given = IPv4Network(pool["subnet"]), IPv4Network(pool["ip_range"])
    assert address in subnet
    assert given.subnet_of(subnet)
    assert address not in given


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_a_dockerfile_starts_a_module_that_exists_without_root(path: Path) -> None:
    found = instructions(path)
    assert {word for word, _ in found} <= INSTRUCTIONS
    assert found[0][0] == "FROM"
    users = [rest for word, rest in found if word == "USER"]
    assert users[-1:] == ["trainyard"]
    command = json.loads(found[-1][1])
    module = modules_started(command)
    assert module is not None
    assert importlib.util.find_spec(f"{module}.__main__") is not None


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_a_dockerfile_installs_extras_that_exist_with_their_packages(path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = " ".join(rest for _, rest in instructions(path))
    extras = re.findall(r'"\$\(ls \./trainyard_programs-\*\.whl\)\[([a-z0-9,]+)\]"', text)
    assert len(extras) == 1
    parts = extras[0].split(",")
    assert set(parts) <= project["optional-dependencies"].keys()
    assert "pip install -c constraints.txt ./trainyard_library-*.whl " in text
    assert ("trainer" in parts) == (path.name == "worker.Dockerfile")
    assert "torch" in text or "trainer" not in parts
    assert ("s3" in parts) == ("worker" in parts), "a node's roots may be buckets"


def test_the_image_has_torch_as_pinned_in_a_build_with_cuda() -> None:
    found = instructions(ROOT / "deploy" / "worker.Dockerfile")
    (install,) = [rest for word, rest in found if word == "RUN" and "pip install" in rest]
    assert "-c constraints.txt" in install
    assert "grep" not in install, "torch is pinned like everything else"
    arguments = dict(rest.split("=") for word, rest in found if word == "ARG")
    assert re.fullmatch(r"\d+\.\d+", arguments["CUDA"])
    assert "found = torch.version.cuda or 'cpu'; assert found == '$CUDA'" in install
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    assert [pin for pin in pins if re.fullmatch(r"torch==\d+\.\d+\.\d+", pin)]


def test_the_example_of_sources_is_legal(tmp_path: Path) -> None:
    (config,) = read_sources(ROOT / "deploy" / "sources.toml")
    open_engine(config, Place(name=config.name, python=config.python, folder=tmp_path))


def test_the_worker_is_no_root_and_keeps_four_capabilities() -> None:
    four = ["CHOWN", "KILL", "SETGID", "SETUID"]
    worker = SERVICES["worker"]
    assert (worker["cap_drop"], worker["cap_add"]) == (["ALL"], four)
    kept = "-all," + ",".join(f"+{name.lower()}" for name in four)
    words = set(worker["command"])
    assert {"--reuid=trainyard", f"--inh-caps={kept}", f"--ambient-caps={kept}"} <= words
    assert RunAs.parse(worker["environment"]["TRAINYARD_RUN_AS"]).count > 1024, "slots of a node"
