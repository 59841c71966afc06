"""What docker/ says is what the command line, the certificates and the sites do."""

import re
from pathlib import Path

import httpx
import pytest
import yaml
from click.testing import CliRunner

from coterie.cli.main import cli
from coterie.deploy.audit import AUDIT, AuditLog, read_audit
from coterie.deploy.config_files import Privacy, SiteConfig, SiteSettings, write_site
from coterie.deploy.consent import AGREED, Consent, digest_of

# isort: split
from coterie.deploy.fleet_client import ALIVE, FleetClient
from coterie.deploy.gate import Gate
from coterie.deploy.mailbox import Mailbox
from coterie.deploy.processes import find_free_port

DOCKER = Path(__file__).parents[2] / "docker"
GATE, METRICS = 8443, 9464


def read_entries() -> dict[str, list[str]]:
    """The command of every target of the Dockerfile."""
    text = (DOCKER / "Dockerfile").read_text()
    stages = re.findall(r"^FROM base AS (\w+)\n(.*?)(?=^FROM|\Z)", text, re.S | re.M)
    return {
        name: yaml.safe_load(re.search(r"^ENTRYPOINT (.*)$", body, re.M)[1])
        for name, body in stages
    }


def check_settings(settings: list[str]) -> None:
    """Every option of a command is one that the command line has."""
    program, command, folder, *options = settings
    assert (program, folder) == ("coterie", "/data")
    names = {name for p in cli.get_command(None, command).params for name in p.opts}
    assert {option for option in options if option.startswith("--")} <= names


def read_manifest() -> dict[str, dict]:
    """Its objects by kind."""
    return {
        one["kind"]: one for one in yaml.safe_load_all((DOCKER / "kubernetes.yaml").read_text())
    }


def read_pods() -> dict[str, dict]:
    """The pods of the manifest by the name of their container."""
    pods = [read_manifest()[kind]["spec"]["template"]["spec"] for kind in ("Job", "StatefulSet")]
    return {pod["containers"][0]["name"]: pod for pod in pods}


def test_the_images_start_commands_that_exist_and_tell_their_health_outside():
    entries = read_entries()
    assert set(entries) == {"server", "site"}
    for settings in entries.values():
        check_settings(settings)
    server = dict(zip(entries["server"][3::2], entries["server"][4::2], strict=False))
    assert server["--metrics-port"] == str(METRICS)
    assert server["--metrics-listen"] == "0.0.0.0"
    text = (DOCKER / "Dockerfile").read_text()
    assert f"EXPOSE {GATE} {METRICS}" in text
    assert f":{METRICS}/health" in text
    assert f"/data/{ALIVE}" in text


def test_torch_comes_alone_and_first_and_no_index_is_named():
    text = (DOCKER / "Dockerfile").read_text()
    installs = re.findall(r"pip install (.*)", text)
    assert len(installs) == 2
    assert installs[0].startswith("--no-deps")
    assert installs[0].endswith("torch")
    assert "${wheel}[federation]" in installs[1]
    assert "://" not in text.replace("http://127.0.0.1", "")


def test_compose_runs_the_images_with_options_that_exist():
    services = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
    entries = read_entries()
    assert services["server"]["ports"] == [
        f"${{COTERIE_GATE:-{GATE}}}:{GATE}",
        f"127.0.0.1:${{COTERIE_METRICS:-{METRICS}}}:{METRICS}",
    ]
    assert services["server"]["restart"] == "on-failure"
    for name, service in services.items():
        entry = entries[service["image"].removeprefix("coterie-")]
        check_settings(entry + service.get("command", []))
        inside = [volume.removesuffix(":ro").rpartition(":")[2] for volume in service["volumes"]]
        assert "/data" in inside
        if name != "server":
            assert service["command"] == ["--data", inside[1]]
            assert "ports" not in service
        assert "healthcheck" not in service  # that of the image: podman-compose spoils a second one
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]


@pytest.mark.parametrize("name", ["server", "site"])
def test_pods_are_locked_down_and_start_the_images(name):
    pod = read_pods()[name]
    assert pod["securityContext"]["runAsNonRoot"]
    (container,) = pod["containers"]
    check_settings(read_entries()[name] + container.get("args", []))
    for one in (*pod["initContainers"], container):
        assert one["securityContext"]["readOnlyRootFilesystem"]
        assert one["securityContext"]["capabilities"]["drop"] == ["ALL"]
        assert one["image"] == f"coterie-{name}"
    claims = read_manifest()["StatefulSet"]["spec"]["volumeClaimTemplates"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in claims} if name == "site" else set()
    for one in (*pod["initContainers"], container):
        assert {mount["name"] for mount in one["volumeMounts"]} <= volumes


def test_the_manifest_fits_the_schemas_of_kubernetes():
    schemas = pytest.importorskip("kubernetes_validate")
    found = read_manifest()
    for one in found.values():
        schemas.validate(one, schemas.latest_version(), strict=True)
    found["Job"]["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(schemas.ValidationError, match="livenesProbe"):
        schemas.validate(found["Job"], schemas.latest_version(), strict=True)


def test_the_service_and_the_probes_ask_for_ports_that_the_server_opens():
    pod = read_pods()["server"]["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in pod["ports"]}
    assert ports == {"gate": GATE, "metrics": METRICS}
    service = read_manifest()["Service"]["spec"]
    assert {port["targetPort"]: port["port"] for port in service["ports"]} == ports
    assert service["selector"] == read_manifest()["Job"]["spec"]["template"]["metadata"]["labels"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert pod[probe]["httpGet"] == {"path": "/health", "port": "metrics"}
    site = read_pods()["site"]["containers"][0]
    assert f"/data/{ALIVE}" in site["readinessProbe"]["exec"]["command"][-1]


def test_the_page_copies_files_that_init_makes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = (
        "federation init clinics --sites north --address server:8443 --classes 2 --features 3"
    )
    assert CliRunner().invoke(cli, settings.split()).exit_code == 0
    page = (DOCKER.parent / "docs" / "containers.md").read_text()
    named = re.findall(r"--from-file=(\S+)", page)
    assert len(named) >= 7
    assert [name for name in named if not Path(name).exists()] == []


def test_a_site_shows_that_it_lives_when_the_server_has_answered(tmp_path):
    port, said = find_free_port(), []
    client = FleetClient(tmp_path, f"localhost:{port}", insecure=True)
    with pytest.raises(httpx.HTTPError):
        client.arrive()
    assert not (tmp_path / ALIVE).exists()
    gate = Gate("127.0.0.1", port, Mailbox(), tmp_path, True, said.append, {})
    try:
        client.arrive()
        assert (tmp_path / ALIVE).exists()
    finally:
        client.leave()
        gate.close()


def test_a_digest_in_site_toml_agrees_without_a_terminal_and_is_in_the_audit(tmp_path):
    settings = {"method": "fedavg", "seed": 0}
    found = digest_of(settings)
    write_site(tmp_path, SiteConfig(SiteSettings("north", experiment=found), Privacy()))
    log = AuditLog(tmp_path / AUDIT)
    for _ in range(2):
        Consent(tmp_path, print)(settings, "", log)
    assert [e["event"] for e in read_audit(tmp_path / AUDIT)] == [AGREED]
    log.add("run", experiment=found, run="a")
    Consent(tmp_path, print)(settings, "a", log)
    with pytest.raises(Exception, match="one run of it"):
        Consent(tmp_path, print)(settings, "b", log)
