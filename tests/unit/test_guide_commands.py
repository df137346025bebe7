"""Every command that a guide page shows is run by a named test, or the page says that none runs it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("deploy/**/*.md")])
PROGRAMS = "rankmem|python3?|pytest|pip|make|torchrun|srun|mpirun|ray|duckdb|kubectl|buildah"
COMMAND = re.compile(rf"(?:[A-Z_]+=\S+ +)*(?:{PROGRAMS}) +[^│─]*$")
SHELLS = ("", "sh", "bash", "console")
NOT_RUN = "Not run by a test:"
"""Begins the paragraph of a page that lists, in backticks, how the commands begin that no test runs."""
RUN_BY = {
    ".ci/run": ["make test"],
    "tests/component/test_certs.py": ["rankmem certs cluster --name node-0 --name 10.0.0.1"],
    "tests/component/test_lake_page_engine.py": ["rankmem page --lake /shared/memory"],
    "tests/component/test_page_process.py": [
        "rankmem page --db exp.duckdb",
        "rankmem serve --db exp.duckdb --page 127.0.0.1:8080",
    ],
    "tests/e2e/test_control.py": [
        "rankmem control detail summary --aggregator HOST:PORT",
        "rankmem control detail full --steps 5000-5020 --aggregator HOST:PORT",
        "rankmem control start --session NAME --ranks 0-7 --aggregator HOST:PORT",
    ],
    "tests/e2e/test_edge_job.py": [
        "RANKMEM_EDGE=on rankmem run --aggregator HOST:PORT -- torchrun …",
        "rankmem fetch SESSION --ranks 3,8-15 --aggregator HOST:PORT",
        "rankmem serve --lake /shared/memory",
    ],
    "tests/e2e/test_harmless_runs.py": [
        "RANKMEM_AGGREGATOR=127.0.0.1:7077 torchrun --nproc-per-node 4 -m rankmem_agent train.py --lr 1e-3"
    ],
    "tests/e2e/test_installed_wheel.py": ["pip install ."],
    "tests/e2e/test_main_job_recorded.py": ["rankmem run -- torchrun --nproc-per-node 4 train.py --lr 1e-3"],
    "tests/e2e/test_pruned_installation.py": [
        "rankmem lake prune --lake /shared/memory --keep-days 90",
        "rankmem peak --lake /shared/memory --by category",
    ],
    "tests/e2e/test_secured_job.py": [
        "RANKMEM_TOKEN_FILE=$PWD/cluster/ingest.token rankmem run -- torchrun … train.py",
        "RANKMEM_TOKEN_FILE=$PWD/cluster/query.token rankmem ranks",
        "rankmem serve --db exp.duckdb --listen 10.0.0.1:7077 --insecure",
        "rankmem serve --db exp.duckdb --listen 10.0.0.1:7077 --tls-cert cluster/aggregator.pem "
        "--tls-key cluster/aggregator.key --ingest-token-file cluster/ingest.token "
        "--query-token-file cluster/query.token",
        "rankmem serve --db mem.duckdb --listen 127.0.0.1:7077",
    ],
    "tests/e2e/test_several_hosts.py": [
        "rankmem run --aggregator 10.0.0.1:7077 --session exp-41 --name exp-41 -- torchrun --nnodes 2 "
        "--node-rank 0 --nproc-per-node 8 --master-addr 10.0.0.1 train.py"
    ],
    "tests/e2e/test_slurm.py": [
        "srun --ntasks-per-node 8 rankmem run --aggregator 10.0.0.1:7077 -- python train.py"
    ],
    "tests/e2e/test_steady_run.py": ["RANKMEM_STEADY=auto rankmem run -- torchrun … train.py"],
    "tests/faults/test_lake_kill.py": [
        "rankmem lake compact --lake /shared/memory",
        "rankmem lake vacuum --lake /shared/memory",
    ],
    "tests/faults/test_random_kills.py": [
        "RANKMEM_FAULT_ROUNDS=12 RANKMEM_FAULT_REPORT=report.jsonl pytest tests/faults"
    ],
    "tests/integration/test_cli_answers.py": [
        "rankmem job-peak",
        "rankmem ops --rank 0 --by category",
        "rankmem peak",
        "rankmem peak --by host",
        "rankmem ranks",
        "rankmem timeline --by rank --out job.html",
    ],
    "tests/integration/test_cli_watching.py": [
        "rankmem prune --db mem.duckdb --keep-days 30",
        "rankmem status --aggregator HOST:PORT",
        "rankmem top --aggregator HOST:PORT --sort headroom",
    ],
    "tests/integration/test_tap_doctor.py": ["rankmem doctor"],
    "tests/unit/test_cli_answer_file.py": ['rankmem sql --out peaks.csv "SELECT …"'],
    "tests/unit/test_cli_lake.py": [
        'RANKMEM_LAKE=/shared/memory rankmem sql "SELECT * FROM peak_by_rank"',
        "rankmem job-peak --lake /shared/memory --engine processes:8",
        "rankmem lake import mem.duckdb --lake /shared/memory",
        'rankmem sql "SELECT …"',
    ],
    "tests/unit/test_import_jobs.py": [
        r"rankmem import 'run7/rank*/trace.json.gz' --rank-from 'rank(\d+)' --name run7",
        "rankmem import snapshots/",
    ],
}
"""The commands of all pages by what runs them: with other names, numbers and files."""
SAME = {"run": "*RUN,", "--aggregator": "RANKMEM_AGGREGATOR", "RANKMEM_TOKEN_FILE": "--token-file"}
"""What may stand in place of a word."""


def shown(page: Path) -> list[str]:
    """The commands in a page's blocks, without prompts and comments; lines that go on are one."""
    found = []
    text = page.read_text(encoding="utf-8")
    for language, block in re.findall(r"^ *```(\w*)\n(.*?)^ *```", text, re.M | re.S):
        for line in re.sub(r"\\\n\s*", "", block).splitlines() if language in SHELLS else ():
            command = re.split(r"\s+#\s|\s{4,}", line.strip().removeprefix("$ "))[0].strip()
            if COMMAND.match(command):
                found.append(re.sub(r" +", " ", command))
    return found


def not_run(page: Path) -> tuple[str, ...]:
    """How the commands begin of which a page says that no test runs them."""
    paragraphs = re.findall(rf"^{NOT_RUN}(.*?)\n\n", page.read_text(encoding="utf-8") + "\n\n", re.M | re.S)
    said = [re.sub(r"\s+", " ", each) for text in paragraphs for each in re.findall(r"`([^`]+)`", text)]
    return tuple(each for each in said if COMMAND.match(each))


def words_of(command: str) -> set[str]:
    """What a test that runs this has to name: variables, the verb, rankmem's options; else the program."""
    variables = set(re.findall(r"\b([A-Z_]+)=", command.partition(" -- ")[0]))
    verb = re.search(r"rankmem ((?:lake |control )?[a-z-]+)", command)
    if verb is None:
        program = re.sub(r"^(?:[A-Z_]+=\S+ +)*", "", command).split()[0]
        return {"rankmem_agent" if "rankmem_agent" in command else program}
    words = verb[1].split()
    return (
        variables
        | set(words)
        | set(re.findall(r"--[a-z-]+(?= |$)", command.partition("rankmem ")[2].partition(" -- ")[0]))
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_command_is_run_by_a_test_or_the_page_says_that_none_runs_it(page: Path) -> None:
    run = {command for commands in RUN_BY.values() for command in commands}
    assert [each for each in shown(page) if each not in run and not each.startswith(not_run(page))] == []


@pytest.mark.parametrize("place", RUN_BY)
def test_a_named_test_names_the_verb_and_the_options_of_what_it_runs(place: str) -> None:
    text = (ROOT / place).read_text(encoding="utf-8")
    for command in RUN_BY[place]:
        assert [
            each for each in words_of(command) if each not in text and SAME.get(each, each) not in text
        ] == [], command


def test_what_no_page_shows_is_in_no_list() -> None:
    everything = {command for page in PAGES for command in shown(page)}
    assert {each for commands in RUN_BY.values() for each in commands} <= everything
    stale = [(page.name, begin) for page in PAGES for begin in not_run(page)
             if not any(command.startswith(begin) for command in shown(page))]  # fmt: skip
    assert stale == []


TABLES = {"docs/launchers.md": 3, "docs/frameworks.md": 3}
"""Pages whose table has a column that says what runs each row."""


@pytest.mark.parametrize("name", TABLES)
def test_each_row_of_a_table_of_commands_names_a_test_that_is_there(name: str) -> None:
    rows = re.findall(r"^\|(.+)\|$", (ROOT / name).read_text(encoding="utf-8").partition("\n## ")[0], re.M)[
        2:
    ]
    assert rows
    for row in rows:
        said = row.split("|")[TABLES[name] - 1]
        named = re.findall(r"`(tests/[\w/]+(?:\.py)?)`", said)
        assert named or re.search(r"the same|which it is|not run", said), row
        assert all((ROOT / each).exists() for each in named), row
