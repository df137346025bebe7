"""The sitecustomize of the preload folder: it chains, claims ranks, and leaves all else alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankmem_agent.preload.launch import environment

REPOSITORY = Path(__file__).parents[2]


def _run(code: str, path: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    base = {k: v for k, v in os.environ.items() if not k.startswith(("RANKMEM_", "RANK"))}
    base["PYTHONPATH"] = os.pathsep.join([str(path), str(REPOSITORY / "agent"), str(REPOSITORY / "protos")])
    env = environment(base, session_id="1ng35yz7rzsj", aggregator="127.0.0.1:9") | settings
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)


LOADED = "import sys; print(sorted(m for m in sys.modules if m.startswith('rankmem_agent')))"


def test_a_process_that_never_imports_torch_loads_only_what_waits_for_it(tmp_path: Path) -> None:
    done = _run(LOADED, tmp_path)
    assert done.stderr == ""
    assert done.stdout.strip() == str(
        [
            "rankmem_agent",
            "rankmem_agent.hooks",
            "rankmem_agent.hooks.user_api",
            "rankmem_agent.preload",
            "rankmem_agent.preload.rank_detection",
            "rankmem_agent.preload.start",
            "rankmem_agent.preload.torch_import",
        ]
    )


@pytest.mark.parametrize("settings", [{"RANKMEM_PRELOAD": "0"}, {"RANKMEM_DISABLE": "1"}])
def test_it_stays_dormant_when_told(settings: dict[str, str], tmp_path: Path) -> None:
    assert _run(LOADED, tmp_path, **settings).stdout == "[]\n"


def test_the_next_sitecustomize_runs_as_if_ours_were_not_there(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print(__name__, __file__)\nvalue = 5\n")
    code = "import sitecustomize, sys; print(sitecustomize.value, any('preload' in p for p in sys.path))"
    done = _run(code, tmp_path)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [f"sitecustomize {tmp_path / 'sitecustomize.py'}", "5 False"]


def test_an_error_in_the_next_sitecustomize_is_reported_as_ever_and_the_agent_waits_all_the_same(
    tmp_path: Path,
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import no_such_module\n")
    code = "import sys; print('rankmem_agent.preload.torch_import' in sys.modules)"
    done = _run(code, tmp_path)
    assert done.stdout == "True\n"
    assert "Error in sitecustomize" in done.stderr
    assert "no_such_module" in done.stderr


def path_of_a_script(folder: Path, variables: dict[str, str]) -> str:
    """sys.path of a script that is not in the working directory."""
    script = folder / "scripts" / "train.py"
    script.parent.mkdir(exist_ok=True)
    script.write_text("import sys; print(sys.path)")
    command = [sys.executable, str(script)]
    return subprocess.check_output(command, cwd=folder, env=variables, text=True, timeout=60)


@pytest.mark.parametrize("given", ["", ":lib", "lib:", "lib::other", ":", "lib"])
@pytest.mark.parametrize("extended", ["{}", "{}:more", "more:{}"])
def test_the_working_directory_is_on_the_path_where_it_is_without_us(
    given: str, extended: str, tmp_path: Path
) -> None:
    base = {"PYTHONPATH": given}
    paths = []
    for variables in (base, environment(base, session_id="s", aggregator="a:1")):
        variables["PYTHONPATH"] = extended.format(variables["PYTHONPATH"])  # in a script of the user's
        paths.append(path_of_a_script(tmp_path, variables))
    assert paths[0] == paths[1]


def test_a_run_below_a_run_keeps_the_working_directory_on_the_path(tmp_path: Path) -> None:
    outer = environment({}, session_id="s", aggregator="a:1")
    outer["PYTHONPATH"] += ":lib"  # in a script of the user's
    inner = environment(outer, session_id="t", aggregator="a:1")
    paths = [path_of_a_script(tmp_path, each) for each in ({"PYTHONPATH": ":lib"}, outer, inner)]
    assert paths[0] == paths[1] == paths[2]


def test_every_process_marks_the_environment_for_its_children(tmp_path: Path) -> None:
    code = """
import os, subprocess, sys
pid, _, key = os.environ["RANKMEM_CLAIMED"].partition(" ")
child = "import sys; print('rankmem_agent.preload.torch_import' in sys.modules)"
print(int(pid) == os.getpid(), key)
sys.stdout.flush()
subprocess.run([sys.executable, "-c", child], check=True)
"""
    assert _run(code, tmp_path).stdout.splitlines() == ["True plain", "True"]
    ranked = _run(code, tmp_path, RANK="1", WORLD_SIZE="2", LOCAL_RANK="1", MASTER_PORT="29500")
    assert ranked.stdout.splitlines() == ["True RANK/1/2/1/0/29500/", "True"]


def test_a_python_without_rankmem_runs_and_only_a_rank_says_so(tmp_path: Path) -> None:
    code = "print('hello')"
    without = {"PYTHONPATH": environment({}, session_id="s", aggregator="a:1")["PYTHONPATH"]}
    command = [
        sys.executable,
        "-S",
        "-c",
        f"import runpy; runpy.run_path(r'{without['PYTHONPATH']}/sitecustomize.py')",
    ]
    base = {"PATH": os.environ["PATH"], "RANKMEM_PRELOAD": "1"}
    quiet = subprocess.run(
        [*command[:-1], command[-1] + f"\n{code}"], env=base, capture_output=True, text=True
    )
    assert (quiet.stdout, quiet.stderr) == ("hello\n", "")
    rank = subprocess.run(
        [*command[:-1], command[-1] + f"\n{code}"],
        env=base | {"LOCAL_RANK": "0"},
        capture_output=True,
        text=True,
    )
    assert rank.stdout == "hello\n"
    assert rank.stderr.count("\n") == 1
    assert "not installed for" in rank.stderr
    with open("/dev/full", "wb") as full:
        unheard = subprocess.run(
            [*command[:-1], command[-1] + f"\n{code}"],
            env=base | {"LOCAL_RANK": "0"},
            stdout=subprocess.PIPE,
            stderr=full,
            text=True,
        )
    assert (unheard.returncode, unheard.stdout) == (0, "hello\n")


def test_a_line_of_the_agents_that_cannot_be_written_leaves_the_exit_code() -> None:
    says = "from rankmem_agent.hooks.guard import Guard; Guard(0).report('the agent is off')"
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "wb") as full:
        done = subprocess.run([sys.executable, "-c", says], env=environ, stderr=full, check=False, timeout=60)
    assert done.returncode == 0
    heard = subprocess.run(
        [sys.executable, "-c", says], env=environ, capture_output=True, check=True, timeout=60
    )
    assert heard.stderr == b"rankmem: rank 0: the agent is off\n"
