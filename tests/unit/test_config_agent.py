"""The agent's configuration: defaults, and a clear word about every value that cannot be used."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path

import pytest

from rankmem_agent.config import AGGREGATOR_DEFAULT, SPOOL_BYTES_DEFAULT, AgentConfig
from rankmem_protos.errors import Code, RankmemError


def test_an_empty_environment_gives_the_defaults() -> None:
    config = AgentConfig.from_environment({})
    assert config.aggregator == AGGREGATOR_DEFAULT
    assert config.spool_bytes == SPOOL_BYTES_DEFAULT
    assert config.session_id is None
    assert config.spool_dir is None
    assert config.devices is None
    assert config.stacks
    assert config.modules
    assert not config.command_arguments
    assert config.drain_s == 10.0
    assert config.parallel == {}


def test_every_setting_is_read() -> None:
    config = AgentConfig.from_environment(
        {
            "RANKMEM_SESSION": "1ng35yz7rzsj",
            "RANKMEM_NAME": "nightly",
            "RANKMEM_AGGREGATOR": "[::1]:9",
            "RANKMEM_SPOOL_DIR": "spools",
            "RANKMEM_SPOOL_BYTES": "33554432",
            "RANKMEM_DEVICES": "cpu, cuda",
            "RANKMEM_STACKS": "off",
            "RANKMEM_MODULES": "off",
            "RANKMEM_PARALLEL": "dp=12, tp=0",
            "RANKMEM_DRAIN_S": "0.5",
            "RANKMEM_COMMAND": "full",
            "TMPDIR": "/var/tmp",
        }
    )
    assert config.session_id == "1ng35yz7rzsj"
    assert config.name == "nightly"
    assert config.aggregator == "[::1]:9"
    assert config.spool_dir == Path.cwd() / "spools"  # absolute: the shipper runs elsewhere
    assert config.spool_bytes == 32 * 2**20
    assert config.devices == {"cpu", "cuda"}
    assert (config.stacks, config.modules, config.command_arguments) == (False, False, True)
    assert config.parallel == {"dp": 12, "tp": 0}
    assert config.drain_s == 0.5
    assert config.temporary_dir == Path("/var/tmp")


def test_a_host_without_a_folder_for_temporary_files_has_a_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", fail)
    assert AgentConfig.from_environment({}).temporary_dir == Path("/tmp")


@pytest.mark.parametrize(
    "other",
    [{"RANKMEM_DETAIL": "events"}, {"RANKMEM_STACKS": "off"}, {"RANKMEM_MODULES": "hooks"}, {}],
)
def test_steady_steps_need_full_detail_and_it_is_said_where_there_is_less(other: dict[str, str]) -> None:
    config = AgentConfig.from_environment({"RANKMEM_STEADY": "20", **other})
    assert (config.audits_every, config.steady_obstacle is None) == ((0, False) if other else (20, True))
    assert AgentConfig.from_environment(other).steady_obstacle is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RANKMEM_AGGREGATOR", "localhost"),
        ("RANKMEM_AGGREGATOR", "localhost:99999"),
        ("RANKMEM_AGGREGATOR", ":7077"),
        ("RANKMEM_SPOOL_BYTES", "1k"),
        ("RANKMEM_SPOOL_BYTES", "1024"),
        ("RANKMEM_DEVICES", "tpu"),
        ("RANKMEM_STACKS", "yes"),
        ("RANKMEM_DETAIL", "some"),
        ("RANKMEM_MODULES", "frames"),
        ("RANKMEM_PARALLEL", "dp"),
        ("RANKMEM_PARALLEL", "dp=1,xp=2"),
        ("RANKMEM_PARALLEL", "dp=-1"),
        ("RANKMEM_DRAIN_S", "-1"),
        ("RANKMEM_DRAIN_S", "nan"),
        ("RANKMEM_DRAIN_S", "soon"),
    ],
)
def test_a_value_that_cannot_be_used_is_named_with_its_variable(name: str, value: str) -> None:
    with pytest.raises(RankmemError) as caught:
        AgentConfig.from_environment({name: value})
    assert caught.value.code is Code.INVALID
    assert name in caught.value.message
    assert value in caught.value.message
    assert name in caught.value.hint


@pytest.mark.parametrize(
    ("given", "not_recorded"),
    [
        ({}, ()),
        ({"RANKMEM_MODULES": "hooks"}, ()),
        ({"RANKMEM_STACKS": "names"}, ()),
        ({"RANKMEM_STACKS": "off"}, ("stacks",)),
        ({"RANKMEM_MODULES": "off"}, ("modules",)),
        ({"RANKMEM_DETAIL": "operators"}, ("stacks", "modules")),
        ({"RANKMEM_DETAIL": "operators", "RANKMEM_STACKS": "full"}, ("stacks", "modules")),
        ({"RANKMEM_DETAIL": "events"}, ("operators", "stacks", "modules")),
        ({"RANKMEM_DETAIL": "auto"}, ()),
    ],
)
def test_what_is_not_recorded_follows_from_the_detail_and_the_finer_switches(
    given: dict[str, str], not_recorded: tuple[str, ...]
) -> None:
    config = AgentConfig.from_environment(given)
    assert config.not_recorded() == not_recorded
    assert config.detail == given.get("RANKMEM_DETAIL", "full")
    assert (config.stacks, config.modules) == ("stacks" not in not_recorded, "modules" not in not_recorded)
