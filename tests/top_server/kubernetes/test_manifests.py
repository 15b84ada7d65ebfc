"""The manifests for Kubernetes: valid, safe, and with settings and certificates that real processes take."""

from __future__ import annotations

import datetime as dt
import stat
import sys
from base64 import b64decode
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from fedgsp.commands import run as run_command
from fedgsp.errors import ConfigError
from fedgsp.identity import TOP_SERVER, Role, node
from fedgsp.security.tls import Tls, TlsFiles
from fedgsp.security.tls import load as load_tls
from fedgsp.settings.files import load
from fedgsp.settings.run import NodeSettings, RunConfig
from top_server.cli import app
from top_server.kubernetes.cluster import Cluster
from top_server.kubernetes.rendering import render

#: The oldest version of Kubernetes whose schemas the tests have.
VERSIONS = ("1.31", "1.34")
CLUSTER = Cluster(image="registry.example.org/fedgsp:1", nodes=3, clients=8, data_claim="hospital-data", gpus=1)
CONFIG = RunConfig(task="my_task:Clinics", task_option={"city": 'a "quoted": name\n- x'}, rounds=7)


def documents(cluster: Cluster = CLUSTER, config: RunConfig = CONFIG) -> dict[tuple[str, str], dict[str, Any]]:
    found = [*yaml.safe_load_all(render(config, cluster, dt.timedelta(days=3)))]
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def pods(found: dict[tuple[str, str], dict[str, Any]]) -> list[dict[str, Any]]:
    return [one["spec"]["template"]["spec"] for (kind, _), one in found.items() if kind == "Job"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "cluster", [CLUSTER, Cluster(image="fedgsp", nodes=1, clients=1, storage_class="fast", name="a", namespace="b")]
)
def test_all_manifests_are_valid(cluster: Cluster, version: str) -> None:
    found = documents(cluster)
    for one in found.values():
        kubernetes_validate.validate(one, version, strict=True)
        assert one["metadata"]["namespace"] == cluster.namespace
    assert {kind for kind, _ in found} == {
        *("ConfigMap", "Secret", "PersistentVolumeClaim", "Service", "NetworkPolicy", "Job")
    }


def test_what_selects_pods_selects_those_of_the_jobs() -> None:
    found = documents()
    labels = {
        name: one["spec"]["template"]["metadata"]["labels"] for (kind, name), one in found.items() if kind == "Job"
    }
    assert found["Service", "fedgsp-top"]["spec"]["selector"] == labels["fedgsp-top"]
    for name, own, other in (
        ("fedgsp-top", "fedgsp-top", "fedgsp-node"),
        ("fedgsp-nodes", "fedgsp-node", "fedgsp-top"),
    ):
        policy = found["NetworkPolicy", name]["spec"]
        assert policy["podSelector"]["matchLabels"] == labels[own]
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        allowed = policy["ingress"][0]["from"] if name == "fedgsp-top" else policy["egress"][0]["to"]
        assert allowed == [{"podSelector": {"matchLabels": labels[other]}}]
    assert found["NetworkPolicy", "fedgsp-top"]["spec"]["egress"] == []
    assert found["NetworkPolicy", "fedgsp-nodes"]["spec"]["ingress"] == []


def test_every_container_is_restricted() -> None:
    for pod in pods(documents()):
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["runAsUser"] >= 10_000
        assert pod["automountServiceAccountToken"] is False
        for container in [*pod["initContainers"], *pod["containers"]]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"]["memory"]
        (main,) = pod["containers"]
        assert "secrets" not in {mount["name"] for mount in main["volumeMounts"]}  # only its own key, by a copy


def written(folder: Path, name: str, secret: dict[str, str]) -> TlsFiles:
    files = TlsFiles(folder / "ca.pem", folder / f"{name}.pem", folder / f"{name}.key")
    for path in (files.ca, files.cert, files.key):
        path.write_bytes(b64decode(secret[path.name]))
        path.chmod(0o600)
    return files


def test_every_process_has_a_certificate_of_its_own(tmp_path: Path) -> None:
    secret = documents()["Secret", "fedgsp-certificates"]["data"]
    assert sorted(secret) == sorted(
        ["ca.pem", *(f"{name}.{end}" for name in ("top", 0, 1, 2) for end in ("pem", "key"))]
    )
    top = load_tls(written(tmp_path, "top", secret))
    assert isinstance(top, Tls)
    assert top.identity == TOP_SERVER
    for host in CLUSTER.hosts:
        top.check_covers(host, "where nodes dial it")
    for index in range(3):
        tls = load_tls(written(tmp_path, str(index), secret))
        assert isinstance(tls, Tls)
        assert tls.identity == node(f"node-{index}")
        tls.check_is(Role.NODE)


def test_the_settings_are_those_of_the_run_and_every_client_has_a_node(tmp_path: Path) -> None:
    data = documents()["ConfigMap", "fedgsp-settings"]["data"]
    for name, text in data.items():
        (tmp_path / name).write_text(text)
    run, hosted = load(RunConfig, tmp_path / "run.toml"), load(NodeSettings, tmp_path / "node.toml")
    assert (run.rounds, run.task_option, run.min_nodes) == (7, CONFIG.task_option, 3)
    assert (hosted.task, hosted.task_option) == (run.task, run.task_option)
    assert hosted.top_server == "fedgsp-top:7000"
    assert [data[f"clients-{index}"] for index in range(3)] == ["0-6/3", "1-7/3", "2-5/3"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"name": "Fed GSP"}, "--name 'Fed GSP' cannot stand in a manifest; write at most 40 small letters"),
        ({"name": "a" * 41}, "--name"),
        ({"namespace": "x\ny"}, "--namespace"),
        ({"image": 'a" # b'}, "--image"),
        ({"memory": "2 GB"}, "--memory '2 GB' cannot stand in a manifest; write a quantity"),
        ({"data_claim": "-a"}, "--data-claim"),
        ({"nodes": 9}, "--nodes 9 with --clients 8; give at least one node"),
        ({"nodes": 0}, "--nodes 0"),
    ],
)
def test_what_cannot_stand_in_a_manifest_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Cluster(**{"image": "i", "nodes": 3, "clients": 8, **changes})


@pytest.mark.parametrize(
    "changes", [{"local_nodes": 2, "clients": 4}, {"listen": "0.0.0.0:7001"}, {"run_dir": Path("x")}]
)
def test_settings_that_the_manifests_make_are_refused_by_name(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(changes))} in --config is for processes"):
        render(RunConfig(**changes), CLUSTER, dt.timedelta(days=1))


@pytest.mark.parametrize(
    "changes", [{"metrics": "0.0.0.0:9100"}, {"web": "127.0.0.1:8080"}, {"grouping": "grpc://grouping:7000"}]
)
def test_settings_that_the_network_policies_make_impossible_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(changes))} in --config needs connections that"):
        render(RunConfig(**changes), CLUSTER, dt.timedelta(days=1))


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | None:
    monkeypatch.setattr(sys, "argv", ["top-server", "kubernetes", *arguments])
    return run_command(app, "top-server")


def test_the_command_writes_a_file_that_nobody_else_can_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "run.toml").write_text('task = "digits"\n')
    flags = ["--config", str(tmp_path / "run.toml"), "--image", "fedgsp", "--nodes", "2", "--clients", "4"]
    assert not command(monkeypatch, *flags, "--out", str(tmp_path / "fedgsp.yaml"))
    assert stat.S_IMODE((tmp_path / "fedgsp.yaml").stat().st_mode) == 0o600
    assert command(monkeypatch, *flags, "--certificates-for", "9y") == ConfigError.exit_code
    assert "--certificates-for" in capsys.readouterr().err
