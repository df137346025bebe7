"""The overlays of deploy/kubernetes as kubectl renders them: by Kubernetes' schemas, and what pods may do."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.options import options_of
from rankmem_aggregator.server import aggregator as server
from rankmem_aggregator.server import certs
from rankmem_aggregator.server.health_probe import main as probe
from rankmem_aggregator.server.watch import Condition

yaml = pytest.importorskip("yaml", reason="needs PyYAML, which kubernetes-validate brings")
DEPLOY = Path(__file__).parents[2] / "deploy"
OVERLAYS = ("in-job", "sidecar", "aggregator", "lake")
OTHERS = {"PodMonitor"}
"""Kinds of operators: Kubernetes has no schema of them."""
NEWEST = 3
pytestmark = pytest.mark.skipif(
    not shutil.which("kubectl"), reason="needs kubectl 1.21 or newer (Kustomize 4: components)"
)
Document = dict[str, Any]


@cache
def rendered(overlay: str) -> tuple[Document, ...]:
    folder = DEPLOY / "kubernetes" / overlay
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


@cache
def cached_schema(name: str, version: str) -> Any:
    """A schema as the library reads it: megabytes, and again for each document."""
    folder = Path(str(pytest.importorskip("kubernetes_validate").__file__)).parent
    return json.loads((folder / name).read_text("utf-8"))


def of_kind(overlay: str, kind: str) -> list[Document]:
    return [document for document in rendered(overlay) if document["kind"] == kind]


def pods(overlay: str) -> Iterator[Document]:
    """The pods of an overlay: their labels and specification."""
    for document in rendered(overlay):
        spec = document.get("spec", {})
        template = spec.get("jobTemplate", {}).get("spec", spec).get("template")
        if template:
            yield template


def containers(overlay: str) -> Iterator[Document]:
    for pod in pods(overlay):
        yield from (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"])


def serving(overlay: str) -> Document:
    (container,) = [found for found in containers(overlay) if found["name"] == "aggregator"]
    return container


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubernetes_accepts_it_strictly(overlay: str, monkeypatch: pytest.MonkeyPatch) -> None:
    schemas = pytest.importorskip("kubernetes_validate.utils", reason="needs kubernetes-validate")
    versions = sorted(set(schemas.all_versions()), key=lambda found: [int(part) for part in found.split(".")])
    monkeypatch.setattr(schemas, "schema_contents", cached_schema)
    for document in rendered(overlay):
        if document["kind"] in OTHERS:
            continue
        for version in versions[-NEWEST:]:
            schemas.validate(document, version, strict=True)


def test_the_check_refuses_what_kubernetes_would() -> None:
    schemas = pytest.importorskip("kubernetes_validate.utils", reason="needs kubernetes-validate")
    (job,) = of_kind("in-job", "Job")
    with pytest.raises(schemas.ValidationError):
        schemas.validate(
            job | {"spec": job["spec"] | {"completion": 1}}, schemas.latest_version(), strict=True
        )


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_have_no_token_no_root_and_limits(overlay: str) -> None:
    (account,) = of_kind(overlay, "ServiceAccount")
    assert account["automountServiceAccountToken"] is False
    for pod in pods(overlay):
        spec = pod["spec"]
        assert spec["serviceAccountName"] == account["metadata"]["name"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        mounted = {mount["name"] for each in containers(overlay) for mount in each["volumeMounts"]}
        assert {volume["name"] for volume in spec["volumes"]} <= mounted
    for container in containers(overlay):
        own = container["securityContext"]
        assert own["allowPrivilegeEscalation"] is False
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert own.get("readOnlyRootFilesystem") is (True if "rankmem" in container["image"] else None)
        assert container["resources"]["limits"]["memory"]
        assert ":" in container["image"], "a tag, or what runs tomorrow is another"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_selector_finds_pods(overlay: str) -> None:
    labels = [pod["metadata"]["labels"] for pod in pods(overlay)]
    selectors = [d["spec"]["selector"] for d in of_kind(overlay, "Service")]
    selectors += [d["spec"]["podSelector"]["matchLabels"] for d in of_kind(overlay, "NetworkPolicy")]
    for kind in ("PodMonitor", "PodDisruptionBudget", "Deployment", "StatefulSet"):
        selectors += [d["spec"]["selector"]["matchLabels"] for d in of_kind(overlay, kind)]
    assert all(any(selector.items() <= found.items() for found in labels) for selector in selectors)
    # Whoever receives anything is behind a policy.
    policies = [d["spec"]["podSelector"]["matchLabels"] for d in of_kind(overlay, "NetworkPolicy")]
    for selector in (d["spec"]["selector"] for d in of_kind(overlay, "Service")):
        assert selector in policies


@pytest.mark.parametrize("overlay", ["aggregator", "lake"])
def test_the_probes_ask_the_health_service_of_an_aggregator_as_it_is_configured(
    overlay: str, tmp_path: Path
) -> None:
    """With the pod's own variables and command, but for folders and ports."""
    container = serving(overlay)
    certs.make(tmp_path / "secrets")
    there = {"/secrets": str(tmp_path / "secrets"), "/data": str(tmp_path), "0.0.0.0:7077": "127.0.0.1:0",
             "0.0.0.0:9477": "127.0.0.1:0", "s3://memory/lake": str(tmp_path / "lake")}  # fmt: skip

    def here(text: str) -> str:
        for name, path in there.items():
            text = text.replace(name, path)
        return text

    variables = {entry["name"]: here(entry["value"]) for entry in container["env"]}
    assert variables.keys() - {found.variable for found in options_of(AggregatorConfig)} == {"TMPDIR"}
    place = here(container["command"][3])
    given: dict[str, Any] = {"database_path": Path(place)} if overlay == "aggregator" else {"lake": place}
    config = AggregatorConfig.from_environment(variables, **given)
    assert config.has_tokens
    with server.open(config) as aggregator:
        there["127.0.0.1:7077"] = aggregator.address
        for name in ("startupProbe", "readinessProbe", "livenessProbe"):
            _python, *command = container[name]["exec"]["command"]
            assert command[:2] == ["-m", "rankmem_aggregator.server.health_probe"]
            assert probe([here(part) for part in command[2:]]) == 0
        command = [sys.executable, *map(here, container["readinessProbe"]["exec"]["command"][1:])]
        assert subprocess.run(command, check=False, timeout=60).returncode == 0
        aggregator._set_health(Condition(reason="the disk is full"))
        assert probe([here(part) for part in container["readinessProbe"]["exec"]["command"][3:]]) == 1
        assert probe([here(part) for part in container["livenessProbe"]["exec"]["command"][3:]]) == 0
    assert probe([here(part) for part in container["livenessProbe"]["exec"]["command"][3:]]) == 1


def test_the_aggregators_of_a_lake_are_several_and_keep_nothing() -> None:
    (deployment,) = of_kind("lake", "Deployment")
    assert deployment["spec"]["replicas"] > 1
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    assert all(set(volume) <= {"name", "secret", "emptyDir"} for volume in volumes)
    container = serving("lake")
    (keeper,) = [found for found in containers("lake") if found["name"] == "keep"]
    assert keeper["envFrom"] == container["envFrom"] == [{"secretRef": {"name": "rankmem-lake"}}]
    lake = next(entry["value"] for entry in keeper["env"] if entry["name"] == "RANKMEM_LAKE")
    assert container["command"][:4] == ["rankmem", "serve", "--lake", lake]
    (training,) = [found for found in containers("lake") if found["name"] == "train"]
    assert "envFrom" not in training, "credentials of the store are not for trainers"


@pytest.mark.parametrize("overlay", ["aggregator", "lake"])
def test_trainers_may_write_and_read_nothing(overlay: str) -> None:
    (training,) = [
        pod for pod in pods(overlay) if pod["metadata"]["labels"]["app.kubernetes.io/name"] == "train"
    ]
    secrets = [v["secret"]["secretName"] for v in training["spec"]["volumes"] if "secret" in v]
    assert secrets == ["rankmem-ingest"]
    (container,) = training["spec"]["containers"]
    variables = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert variables["RANKMEM_TOKEN_FILE"] == "/rankmem/ingest.token"
    assert variables["RANKMEM_TLS_CA"]
