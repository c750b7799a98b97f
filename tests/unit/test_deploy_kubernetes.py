"""Kubernetes manifests: checked against the API's schema, and against the program that they run."""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import kubernetes_validate
import pytest
from support.deployment import files_below, parse_command, refused_by, settings_of, yaml_documents

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
VERSIONS: Final = ("1.29", "1.37")
"""The oldest with sidecars that end last, and the newest whose schema is here."""
COMMANDS = {
    "topics": "moescope kafka topics-apply",
    "store": "moescope run store",
    "processor": "moescope run processor",
    "agent": "moescope run agent",
}

Manifest = dict[str, Any]


@cache
def read(path: Path) -> list[Manifest]:
    """Manifests of a file; a kustomization and its patches are none."""
    documents = yaml_documents(path.read_text(encoding="utf-8"))
    return [
        each for each in documents if isinstance(each, dict) and each["kind"] != "Kustomization"
    ]


MANIFESTS = [
    pytest.param(each, id=f"{path.parent.name}/{each['kind']}/{each['metadata']['name']}")
    for path in files_below(FOLDER, "*.yaml")
    for each in read(path)
]


def all_manifests() -> list[Manifest]:
    """Every manifest of the folder."""
    return list(chain.from_iterable(read(path) for path in files_below(FOLDER, "*.yaml")))


def pods() -> Iterator[tuple[str, Manifest]]:
    """Specifications of pods, by the name of what makes them."""
    for each in all_manifests():
        if "template" in each.get("spec", {}):
            yield each["metadata"]["name"], each["spec"]["template"]["spec"]


def containers() -> Iterator[tuple[str, Manifest, Manifest]]:
    """Containers that run moescope: name, container, its pod."""
    for _, pod in pods():
        for each in (*pod.get("initContainers", []), *pod["containers"]):
            if "moescope" in each["image"]:
                yield each["name"], each, pod


def variables(container: Manifest) -> dict[str, str]:
    """What a container's environment is, with the ConfigMaps that it takes."""
    maps = {
        each["metadata"]["name"]: each["data"]
        for path in files_below(FOLDER / "base", "*.yaml")
        for each in read(path)
        if each["kind"] == "ConfigMap"
    }
    found: dict[str, str] = {}
    for source in container.get("envFrom", []):
        found |= maps[source["configMapRef"]["name"]]
    for each in container.get("env", []):
        found[each["name"]] = each.get("value", "from-the-pod")
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("manifest", MANIFESTS)
def test_manifests_follow_the_schema(manifest: Manifest, version: str) -> None:
    """An unknown or misplaced key would be refused by the cluster, or worse, ignored."""
    kubernetes_validate.validate(manifest, version, strict=True)
    wrong = json.loads(json.dumps(manifest)) | {"spek": {}}
    assert refused_by(lambda: kubernetes_validate.validate(wrong, version, strict=True))


def test_containers_run_and_check_what_they_say() -> None:
    """A command that was renamed would only fail in a cluster that is not here."""
    seen = {}
    for name, container, _ in containers():
        seen[name] = parse_command(container["args"])
        for probe in ("startupProbe", "livenessProbe"):
            if name != "topics":
                program, *words = container[probe]["exec"]["command"]
                assert program == "moescope"
                assert parse_command(words) == "moescope doctor"
                assert words[-2:] == ["--component", name]
    assert seen == COMMANDS


def test_variables_are_settings() -> None:
    """A mistyped variable has no effect, and nobody is told."""
    for name, container, _ in containers():
        settings = settings_of(variables(container))
        assert settings["kafka.bootstrap_servers"]
        assert name != "processor" or settings["kafka.instance_id"] == "from-the-pod"
        for port in container.get("ports", []):
            assert port["containerPort"] == settings["watch.port"]
            assert settings["watch.host"] == "0.0.0.0"  # noqa: S104 (of the pod)
    (secured,) = read(FOLDER / "secured-kafka" / "settings.yaml")
    assert settings_of(secured["data"])["kafka.security_protocol"] == "SASL_SSL"


def test_what_is_mounted_exists_and_covers_what_is_written() -> None:
    """With a read-only root, a folder that is no volume is one that nothing can be written to."""
    for name, container, pod in containers():
        mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
        known = {each["name"] for each in pod["volumes"]}
        known |= {
            claim["metadata"]["name"]
            for each in all_manifests()
            for claim in each.get("spec", {}).get("volumeClaimTemplates", [])
            if each["metadata"]["name"] == f"moescope-{name}"
        }
        assert set(mounts.values()) <= known
        if name in {"store", "processor"}:
            assert {"/var/lib/moescope", "/var/cache/moescope", "/tmp"} <= set(mounts)  # noqa: S108 - of the container
        if name == "agent":
            assert {"/var/lib/moescope", "/var/lib/moescope/ring"} <= set(mounts)


def test_pods_may_do_little() -> None:
    """What the namespace's level `restricted` asks for, and no token for the cluster's API."""
    for _, pod in pods():
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        security = pod["securityContext"]
        assert security["runAsNonRoot"]
        assert security["runAsUser"] == security["fsGroup"] == 10001
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        for each in (*pod.get("initContainers", []), *pod["containers"]):
            inner = each["securityContext"]
            assert inner["allowPrivilegeEscalation"] is False
            assert inner["capabilities"] == {"drop": ["ALL"]}
            assert inner.get("readOnlyRootFilesystem") or each["name"] == "engine"
            assert each["resources"]["limits"]["memory"]
            assert "cpu" not in each["resources"]["limits"]


def test_the_store_is_one_and_processors_keep_their_names() -> None:
    """Two owners would fight for one file; by its name a processor shuts its predecessor out."""
    sets = {
        each["metadata"]["name"]: each for each in all_manifests() if each["kind"] == "StatefulSet"
    }
    assert sets["moescope-store"]["spec"]["replicas"] == 1
    assert sets["moescope-store"]["spec"]["volumeClaimTemplates"]
    processors = sets["moescope-processor"]["spec"]
    assert processors["replicas"] <= settings_of({})["kafka.partitions"]
    assert "volumeClaimTemplates" not in processors
    names = {
        each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"]
        for each in processors["template"]["spec"]["containers"][0]["env"]
    }
    assert names == {"MOESCOPE_KAFKA_INSTANCE_ID": "metadata.name"}


def test_selectors_find_their_pods() -> None:
    """A service, budget or policy that selects nothing is silent about it."""
    labels = [
        each["spec"]["template"]["metadata"]["labels"]
        for each in all_manifests()
        if "template" in each.get("spec", {})
    ]
    for each in all_manifests():
        selector = each.get("spec", {}).get("selector") or each.get("spec", {}).get("podSelector")
        if selector is not None:
            wanted = selector.get("matchLabels", selector)
            assert any(wanted.items() <= each.items() for each in labels), wanted


def test_the_sidecar_starts_first_and_ends_last() -> None:
    """What an engine records while it ends is shipped; the ring is in memory, and has a limit."""
    (pod,) = (pod for name, pod in pods() if name == "inference")
    (agent,) = pod["initContainers"]
    assert agent["restartPolicy"] == "Always"
    volumes = {each["name"]: each["emptyDir"] for each in pod["volumes"]}
    assert volumes["ring"] == {"medium": "Memory", "sizeLimit": "256Mi"}
    assert volumes["log"] == {"sizeLimit": "4Gi"}
    settings = settings_of(variables(agent))
    assert settings["log.byte_cap"] < 4 << 30
    assert pod["terminationGracePeriodSeconds"] > settings["kafka.delivery_timeout"]
    (engine,) = pod["containers"]
    assert {each["name"] for each in engine["volumeMounts"]} == {"ring"}


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.parametrize("overlay", ["base", "secured-kafka"])
def test_kustomize_builds(overlay: str) -> None:
    """Every file is taken, images are replaced, and patches reach what they are for."""
    built = subprocess.run(
        ["kubectl", "kustomize", str(FOLDER / overlay)], check=True, capture_output=True, text=True
    )
    documents = yaml_documents(built.stdout)
    below = chain.from_iterable(read(path) for path in files_below(FOLDER / "base", "*.yaml"))
    assert sorted(each["kind"] for each in documents) == sorted(each["kind"] for each in below)
    for each in documents:
        kubernetes_validate.validate(each, VERSIONS[-1], strict=True)
        if "template" in each.get("spec", {}):
            pod = each["spec"]["template"]["spec"]
            (container,) = pod["containers"]
            assert container["image"] == "registry.example/moescope:0.1.0"
            assert each["metadata"]["namespace"] == "moescope"
            mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
            assert ("/etc/moescope/kafka" in mounted) == (overlay == "secured-kafka")
        if each["kind"] == "ConfigMap" and overlay == "secured-kafka":
            settings = settings_of(each["data"])
            assert settings["store.source"] == "deltas"
            files = (settings["kafka.sasl_password_file"], settings["kafka.ssl_ca_file"])
            (secret,) = read(FOLDER / overlay / "secret.example.yaml")
            assert {Path(file).name for file in files} == set(secret["stringData"])
            assert {str(Path(file).parent) for file in files} == {"/etc/moescope/kafka"}


def test_no_secret_is_kept() -> None:
    """The example shows keys, and a kustomization never takes it along."""
    (secret,) = read(FOLDER / "secured-kafka" / "secret.example.yaml")
    assert all("REPLACE-ME" in value for value in secret["stringData"].values())
    for path in files_below(FOLDER, "kustomization.yaml"):
        (kustomization,) = yaml_documents(path.read_text(encoding="utf-8"))
        assert not any("secret" in resource for resource in kustomization["resources"])
