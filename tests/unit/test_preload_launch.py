"""The environment of ``rankmem run``'s command."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankmem_agent.preload import launch


def test_the_preload_folder_leads_the_path_and_the_user_s_stays() -> None:
    base = {"PYTHONPATH": "/a::/b", "HOME": "/home/me", "RANKMEM_CLAIMED": "1 plain"}
    made = launch.environment(base, session_id="1ng35yz7rzsj", aggregator="127.0.0.1:9", name="nightly")
    assert made["PYTHONPATH"].split(os.pathsep) == [str(launch.SITE), "/a", "", "/b"]
    assert (launch.SITE / "sitecustomize.py").is_file()
    assert made["RANKMEM_SESSION"] == "1ng35yz7rzsj"
    assert made["RANKMEM_AGGREGATOR"] == "127.0.0.1:9"
    assert made["RANKMEM_NAME"] == "nightly"
    assert made["RANKMEM_DRAIN_S"] == "0"
    assert made["HOME"] == "/home/me"
    assert "RANKMEM_CLAIMED" not in made
    assert base["PYTHONPATH"] == "/a::/b"


@pytest.mark.parametrize("base", [{}, {"PYTHONPATH": ""}])
def test_an_empty_path_gets_no_trailing_separator(base: dict[str, str]) -> None:
    """It would put the working directory on the trainer's path."""
    made = launch.environment(base, session_id="s", aggregator="a:1")
    assert made["PYTHONPATH"] == f"{launch.SITE}{os.sep}"  # so that it is seen if a script extends it
    again = launch.environment(made, session_id="s", aggregator="a:1")
    assert again["PYTHONPATH"] == made["PYTHONPATH"]


def test_the_spool_folder_is_made_absolute() -> None:
    made = launch.environment({}, session_id="s", aggregator="a:1", spool_dir=Path("x"), drain_s=2.5)
    assert made["RANKMEM_SPOOL_DIR"] == str(Path.cwd() / "x")
    assert made["RANKMEM_DRAIN_S"] == "2.5"
