"""Engines of a lake by their addresses: what is refused before anything runs."""

from __future__ import annotations

import importlib.util

import pytest

from rankmem_aggregator.lake import engine as engine_module
from rankmem_aggregator.lake import on_ray
from rankmem_aggregator.lake.engines import open_engine
from rankmem_cli.args.options import source
from rankmem_protos.errors import Code, RankmemError


@pytest.mark.parametrize(
    "address",
    ["processes:0", "processes:", "processes:-1", "processes:257", "spark", "ray", "ray://head", "head:0",
     "ray://head:10001/x", "head:65536", "http://head:1", "sc://:1"],
)  # fmt: skip
def test_what_is_no_engine_is_refused(address: str) -> None:
    with pytest.raises(RankmemError, match=f"'{address}' is no engine") as caught:
        open_engine(address)
    assert caught.value.code is Code.INVALID


@pytest.mark.parametrize(
    ("address", "package", "extra"),
    [("ray://h:1", "ray", "ray"), ("h:1", "ray", "ray"), ("sc://h:1/;token=x", "pyspark", "spark")],
)
def test_a_package_that_is_not_installed_is_named_with_its_extra(
    address: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RankmemError, match=f"needs the package {package}") as caught:
        open_engine(address)
    assert caught.value.hint == f"pip install 'rankmem[{extra}]'"
    assert "token" not in str(caught.value)


def test_a_ray_cluster_of_another_version_is_named_with_both_versions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(engine_module, "check_reachable", lambda *place: None)
    engine = on_ray.OnRay("ray://head:10001", "head", 10001)
    said = "Version mismatch: The cluster was started with:\n    Ray: 2.52.1\nThis process:\n    Ray: 2.60.0"
    refused = engine._refusal(RuntimeError(said))
    assert refused.code is Code.UNSUPPORTED
    assert refused.message.startswith("the Ray cluster at ray://head:10001 is of another version: ")
    assert refused.message.endswith("Ray: 2.52.1 This process: Ray: 2.60.0")


def test_the_variable_counts_for_verbs_that_have_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANKMEM_DB", raising=False)
    monkeypatch.setenv("RANKMEM_LAKE", "lake:/somewhere")
    monkeypatch.setenv("RANKMEM_ENGINE", "processes:2")
    assert source().engine is None
    assert source(engine=None).engine == "processes:2"
    assert source(engine="processes:3").engine == "processes:3"
