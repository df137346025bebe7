"""What lies in deploy/ can be parsed, and calls verbs and options that exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rankmem_aggregator.config import AggregatorConfig

ROOT = Path(__file__).parents[2]
HELP = (ROOT / "tests/unit/golden/cli_help.txt").read_text(encoding="utf-8")
FILES = sorted(
    p
    for p in (ROOT / "deploy").rglob("*")
    if p.is_file() and p.suffix not in (".md", ".timer", ".py", ".json", ".pyc")
)
GUIDES = [ROOT / "docs/multi-node.md", ROOT / "docs/scale.md", ROOT / "README.md"]
VERBS = (
    "run|diff|serve|ship|certs|timeline|peak|job-peak|ops|live|oom|"
    "lake import|lake compact|lake prune|lake vacuum"
)
CALL = re.compile(rf"rankmem ({VERBS})\b([^\n`|#&]*)")


def options_of(verb: str) -> set[str]:
    """The options in a verb's help."""
    text = HELP.partition(f"$ rankmem {verb} --help")[2].partition("\n$ rankmem")[0]
    return set(re.findall(r"--[a-z-]+", text))


@pytest.mark.parametrize("path", [*FILES, *GUIDES], ids=lambda path: str(path.relative_to(ROOT)))
def test_verbs_and_options_exist(path: Path) -> None:
    text = re.sub(r"\\\n\s*", " ", path.read_text(encoding="utf-8"))
    text = re.sub(r'"rankmem", (".*")\]', lambda m: "rankmem " + m[1].replace('", "', " ").strip('"'), text)
    calls = [(verb, said.partition(" -- ")[0]) for verb, said in CALL.findall(text)]
    assert calls or "kubernetes" in path.parts, "nothing of rankmem's is called here"
    for verb, said in calls:
        assert set(re.findall(r"--[a-z][a-z-]+", said)) <= options_of(verb), (verb, said)


def test_several_hosts_talk_with_tls_and_tokens() -> None:
    text = (ROOT / "deploy/slurm-multi-node.sbatch").read_text(encoding="utf-8")
    assert "--insecure" not in text
    for option in ("--tls-cert", "--tls-key", "--ingest-token-file", "--query-token-file"):
        assert option in text
    assert "--tls-ca" in text or "RANKMEM_TLS_CA" in text
    assert "--token-file" in text.replace("ingest-token-file", "") or "RANKMEM_TOKEN_FILE" in text


@pytest.mark.parametrize("name", ["kuberay.yaml", "slurm-ray.sbatch"])
def test_ray_takes_tasks_from_those_with_its_token_alone(name: str) -> None:
    text = (ROOT / "deploy" / name).read_text(encoding="utf-8")
    assert "mode: token" in text or "RAY_AUTH_MODE=token" in text
    assert "kind: NetworkPolicy" in text or "umask 077" in text


@pytest.mark.parametrize(
    "path", [p for p in FILES if p.suffix in (".yaml", ".yml")], ids=lambda path: str(path.relative_to(ROOT))
)
def test_documents_parse(path: Path) -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with ray: pip install 'rankmem[ray]'")
    documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    assert all(isinstance(document, dict) for document in documents)
    if path.name == "kuberay.yaml":
        assert all({"apiVersion", "kind", "metadata", "spec"} <= document.keys() for document in documents)


@pytest.mark.parametrize("path", [p for p in FILES if p.suffix == ".sbatch"], ids=lambda path: path.name)
def test_scripts_parse(path: Path) -> None:
    done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


CREDENTIAL = re.compile(r"AWS_(?:ACCESS_KEY_ID|SECRET_ACCESS_KEY|SESSION_TOKEN)")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_credentials_of_a_store_are_in_no_file(path: Path) -> None:
    for line in path.read_text(encoding="utf-8").splitlines():
        if CREDENTIAL.search(line):
            assert line.startswith("#"), line
            assert not re.search(rf"{CREDENTIAL.pattern}=(?!\.\.\.|…)", line), line
    assert not re.search(r"s3://[^\s\"]*@", path.read_text(encoding="utf-8"))


def test_the_unit_of_a_lakes_aggregator_serves_the_lake_of_its_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = (ROOT / "deploy/rankmem-serve-lake@.service").read_text(encoding="utf-8")
    name, value = next(
        line.removeprefix("Environment=").split("=", 1)
        for line in text.splitlines()
        if line.startswith("Environment=")
    )
    monkeypatch.delenv("RANKMEM_DB", raising=False)
    monkeypatch.setenv(name, value)
    assert AggregatorConfig.from_environment().lake == value
    assert "EnvironmentFile=-/etc/rankmem/lake.env" in text


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_action_records_both_sides_and_its_exit_code_is_the_verdict(tmp_path: Path) -> None:
    """Its steps but for pip and gh, over two commits: the second keeps a copy of the model."""
    steps = _shell_of("github-memory-diff.yml")
    assert [name for name in steps if name] == ["Record the base", "Record the pull request", "Compare",
                                                "Say it in the pull request"]  # fmt: skip
    work = tmp_path / "work"
    work.mkdir()
    environment = {
        **os.environ, "RUNNER_TEMP": str(tmp_path), "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "TRAIN": f"{sys.executable} train.py", "RANKMEM_DEVICES": "cpu", "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }  # fmt: skip

    def shell(text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-e", "-c", text], cwd=work, env=environment, capture_output=True, text=True, check=False
        )

    commit = "git add . && git -c user.name=x -c user.email=x@example.com commit -qm x && git rev-parse HEAD"
    (work / "train.py").write_text(TRAIN.format(kept=""))
    base = shell(f"git init -q . && {commit}").stdout.strip()
    (work / "train.py").write_text(
        TRAIN.format(kept="kept.append([p.detach().clone() for p in net.parameters()])")
    )
    assert shell(commit).returncode == 0
    for name in ("Record the base", "Record the pull request"):
        done = shell(steps[name].replace("${{ github.event.pull_request.base.sha }}", base))
        assert done.returncode == 0, done.stderr
    compared = shell(steps["Compare"])
    assert compared.returncode == 1, compared.stderr
    said = (tmp_path / "memory.md").read_text(encoding="utf-8")
    assert said == (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert "**peak of a step is worse at equal input: " in said
    assert "aten::clone" in said


def test_the_action_compares_with_the_commit_at_which_the_pull_request_branched_off(tmp_path: Path) -> None:
    steps = _shell_of("github-memory-diff.yml")
    work = tmp_path / "work"
    work.mkdir()
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "rankmem").write_text('#!/bin/sh\ncat file >"$RUNNER_TEMP/recorded"\n')
    (tools / "rankmem").chmod(0o755)

    def shell(text: str) -> str:
        more = {"RUNNER_TEMP": str(tmp_path), "HOME": str(tmp_path), "TRAIN": "x"}
        environment = {**os.environ, **more, "PATH": f"{tools}:{os.environ['PATH']}"}
        return subprocess.check_output(["bash", "-e", "-c", text], cwd=work, env=environment, text=True)

    def commit(content: str) -> str:
        own = "git add . && git -c user.name=x -c user.email=x@example.com commit -qm x && git rev-parse HEAD"
        return shell(f"echo {content} >file && {own}").strip()

    shell("git init -q . && git checkout -qb main")
    commit("branched off")
    shell("git checkout -qb change")
    commit("changed")
    shell("git checkout -q main")
    tip = commit("what others changed since")
    shell("git checkout -q change")
    shell(steps["Record the base"].replace("${{ github.event.pull_request.base.sha }}", tip))
    assert (tmp_path / "recorded").read_text() == "branched off\n"


GH = """#!/bin/sh
printf '%s\\n' "$*" >>"$RUNNER_TEMP/calls"
case "$*" in *--jq*) cat "$RUNNER_TEMP/found" ;; esac
"""


def test_the_action_keeps_one_comment_and_has_none_of_what_was_not_compared(tmp_path: Path) -> None:
    text = _shell_of("github-memory-diff.yml")["Say it in the pull request"]
    (tmp_path / "gh").write_text(GH)
    (tmp_path / "gh").chmod(0o755)
    environment = {
        **os.environ, "RUNNER_TEMP": str(tmp_path), "GITHUB_REPOSITORY": "me/it", "NUMBER": "7",
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }  # fmt: skip

    def calls(found: str) -> list[str]:
        (tmp_path / "calls").write_text("")
        (tmp_path / "found").write_text(found)
        subprocess.run(["bash", "-e", "-c", text], env=environment, check=True)
        return (tmp_path / "calls").read_text().splitlines()

    assert calls("") == []
    (tmp_path / "memory.md").write_text("**nothing is worse**\n")
    listed, made = calls("")
    assert listed.startswith("api --paginate repos/me/it/issues/7/comments --jq ")
    assert made == f"pr comment 7 --body-file {tmp_path}/comment.md"
    assert (tmp_path / "comment.md").read_text() == "<!-- rankmem diff -->\n**nothing is worse**\n"
    _, edited = calls("31\n32\n")
    assert edited == (
        f"api --method PATCH repos/me/it/issues/comments/31 --field body=@{tmp_path}/comment.md"
    )


TRAIN = """
import torch
def main():
    kept = []
    net = torch.nn.Linear(256, 512)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    {kept}
    for step in range(8):
        net(torch.randn(4 + step % 3, 256)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
main()
"""


def _shell_of(name: str) -> dict[str, str]:
    """The shell of each step of a GitHub Action, by the step's name; without a reader of YAML, which is not
    everywhere where the tests run."""
    text = (ROOT / "deploy" / name).read_text(encoding="utf-8")
    found = {}
    for step in text.partition("    steps:\n")[2].split("      - ")[1:]:
        named = re.match(r"name: (.*)", step)
        run = re.search(r"run: (?:\|\n((?: {10}.*\n|\n)+)|(.*))", step)
        if named and run:
            found[named[1]] = textwrap.dedent(run[1]) if run[1] else run[2]
    return found
