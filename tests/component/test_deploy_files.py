"""What lies in deploy/ can be parsed, and calls verbs and options that exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HELP = (ROOT / "tests/unit/golden/cli_help.txt").read_text(encoding="utf-8")
FILES = sorted(p for p in (ROOT / "deploy").iterdir() if p.is_file() and p.suffix != ".md")
GUIDES = [ROOT / "docs/multi-node.md", ROOT / "README.md"]
CALL = re.compile(r"rankmem (run|serve|ship|certs|timeline|peak|ops|live|oom)\b([^\n`|#]*)")


def options_of(verb: str) -> set[str]:
    """The options in a verb's help."""
    text = HELP.partition(f"$ rankmem {verb} --help")[2].partition("\n$ rankmem")[0]
    return set(re.findall(r"--[a-z-]+", text))


@pytest.mark.parametrize("path", [*FILES, *GUIDES], ids=lambda path: path.name)
def test_verbs_and_options_exist(path: Path) -> None:
    text = re.sub(r"\\\n\s*", " ", path.read_text(encoding="utf-8"))
    text = re.sub(r'"rankmem", "serve", (.*)\]', lambda m: "rankmem serve " + m[1].replace('", "', " "), text)
    calls = [(verb, said.partition(" -- ")[0]) for verb, said in CALL.findall(text)]
    assert calls, "nothing of rankmem's is called here"
    for verb, said in calls:
        assert set(re.findall(r"--[a-z][a-z-]+", said)) <= options_of(verb), (verb, said)


@pytest.mark.parametrize("name", ["kubernetes.yaml", "slurm-multi-node.sbatch"])
def test_several_hosts_talk_with_tls_and_tokens(name: str) -> None:
    text = (ROOT / "deploy" / name).read_text(encoding="utf-8")
    assert "--insecure" not in text
    for option in ("--tls-cert", "--tls-key", "--ingest-token-file", "--query-token-file"):
        assert option in text
    assert "--tls-ca" in text or "RANKMEM_TLS_CA" in text
    assert "--token-file" in text.replace("ingest-token-file", "") or "RANKMEM_TOKEN_FILE" in text


@pytest.mark.parametrize("path", [p for p in FILES if p.suffix == ".sbatch"], ids=lambda path: path.name)
def test_scripts_parse(path: Path) -> None:
    done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
