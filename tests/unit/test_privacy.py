"""What of a job stays on its host."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from constructed import empty_database, store_rows
from rankmem_agent import facts
from rankmem_agent.config import AgentConfig
from rankmem_agent.preload.rank_detection import DetectedRank
from rankmem_agent.privacy import OUTSIDE, Privacy, is_secret, masked
from rankmem_protos.errors import RankmemError
from rankmem_ship.pairing.stacks import stack_hash
from spool_synthetic import SyntheticSpool

SECRET = "s3cr3t-Value.0123456789"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--token", SECRET],
        ["--hf_token", SECRET],
        [f"--token={SECRET}"],
        [f"--api-key={SECRET}"],
        ["--wandbApiKey", SECRET],
        [f"wandb.api_key={SECRET}"],
        [f"+logger.password={SECRET}"],
        [f"DB_PASSWORD={SECRET}"],
        ["--db-password", SECRET],
        ["--secret-access-key", SECRET],
        ["--password", f"-{SECRET}"],
        ["-token", SECRET],
        ["--auth", SECRET],
        ["--sentry-dsn", f"https://{SECRET}@sentry.example/1"],
        [f"--data=s3://user:{SECRET}@bucket/x"],
        [f"https://user:{SECRET}@git.example/repo.git"],
        [f"https://{SECRET}@git.example/repo.git"],
        [f"https://store.example/x?part=1&sas_token={SECRET}&b=2"],
        [f"https://store.example/x?api_key={SECRET}"],
        ["--header", f"Authorization: Bearer {SECRET}"],
        ["-H", f"authorization: Basic {SECRET}"],
        [f"Bearer {SECRET}"],
        ["hf_" + SECRET.replace("-", "_")],
        ["--x", f"ghp_{SECRET}"],
        ["--y=sk-" + SECRET],
        ["eyJ" + SECRET],
        ["--pass", SECRET],
        ["--accesstoken", SECRET],
        ["--aws-access-key-id", SECRET],
        ["--api-keys", SECRET],
        ["--cookie", f"a={SECRET}"],
        [f"-Dpassword={SECRET}"],
        [f"TOKEN:{SECRET}"],
        [f"--env=API_KEY={SECRET}"],
        ["--config", f'{{"lr": 1, "password": "two words {SECRET} more", "b": 2}}'],
        [f"trainer={{logger:{{_target_:W,api_key:{SECRET}}}}}"],
        ["--conn", f"host=h password={SECRET} user=x"],
        [f"Server=h;Password={SECRET};"],
        ["--header", f"X-Auth-Token: {SECRET}"],
        [f"mysql+pymysql://u:p@{SECRET}@h/db"],
        [f"https://store.example/x?sv=1&sig={SECRET}"],
        [f"https://store.example/x?X-Amz-Signature={SECRET}"],
        [f"gsk_{SECRET}", f"npm_{SECRET}"],
        ["--creds", SECRET],
        ["--gcp-creds", SECRET],
        [f"creds={SECRET}"],
        ["--login", f"me:{SECRET}"],
        [f"--login=me:{SECRET}"],
        ["-u", f"me:{SECRET}"],
        ["--proxy-user", f"me:{SECRET}"],
        ["-p", SECRET],
        [f"-p={SECRET}"],
        [f"-p{SECRET}"],
        ["-psecrets3cr3t"],
        ["--notify", "https://hooks.slack.com/services/T0/B0/s3cr3t"],
        ["hooks.slack.com/services/T0/B0/s3cr3t"],
        ["--url=https://discord.com/api/webhooks/12345/s3cr3t"],
        ["--url", "https://team.webhook.office.com/webhookb2/s3cr3t@x/IncomingWebhook/y"],
        ["--slack-webhook", "x/s3cr3t"],
        ["https://api.telegram.org/bot12345:s3cr3tAAAAAAAAAAAAAAAA/sendMessage"],
        ["https://hc-ping.com/s3cr3ts3cr3ts3cr3ts3cr3t"],
        ["trainer={logger:{url:https://x.example/hook/s3cr3t}}"],
    ],
)
def test_what_sounds_secret_is_masked_wherever_it_stands(arguments: list[str]) -> None:
    shown = " ".join(masked([*arguments, "--lr", "1e-3"]))
    assert "s3cr3t" not in shown
    assert "***" in shown
    assert shown.endswith("--lr 1e-3")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--lr", "1e-3", "--max-tokens", "512", "--tokenizer", "gpt2", "--num-key-value-heads", "8"],
        ["--token-file", "/run/secrets/t", "--keyword", "x", "--monkey", "see", "--batch=8"],
        ["model.author=me", "--turkey=1", "data=https://example.com/x?epoch=3#top", "a=b=c"],
        ["--eval", "-1", "s3://bucket/key/x"],
        [
            "-p",
            "8080",
            "-p",
            "0.9",
            "-p8",
            "-port",
            "3",
            "-path=x",
            "-p",
            "--lr",
            "1",
            "-profile",
            "-p",
            "-x",
        ],
        ["--user", "me", "--user", "1000:1000", "-u", "--login=me", "--account=a"],
        ["https://github.com/me/pytorch-hooks", "https://x.example/llama-3-70b-instruct-fp16-v2/webhook.md"],
        ["https://huggingface.co/meta-llama/Llama-3.1-70B-Instruct", "s3://b/0123456789abcdef0123/x"],
        ["--forward-pass", "2", "--keys", "a", "model={n_head:8,key_dim:64}", "--key-dim=64", "--sigma=0.1"],
    ],
)
def test_what_does_not_is_left_as_it_is(arguments: list[str]) -> None:
    assert masked(arguments) == arguments


def test_an_option_without_a_value_does_not_mask_the_next_option() -> None:
    assert masked(["--use-auth", "--lr", "1"]) == ["--use-auth", "--lr", "1"]
    assert is_secret("--use-auth")


def test_the_command_is_told_on_demand_masked_and_with_its_paths_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ["/home/me/train.py", "--out=/home/me/x", "--token", SECRET, "/home/mellow", "a:/home/me"]
    monkeypatch.setattr("sys.argv", argv)
    monkeypatch.setattr(facts, "script_name", lambda: argv[0])
    detected = DetectedRank.__new__(DetectedRank)
    detected.world_size = 1
    environment = {"RANKMEM_PATH_MAP": "/home/me=~"}
    told = facts.session_facts(AgentConfig.from_environment(environment), "s", detected, "2")
    assert told["command"] == "~/train.py"
    full = AgentConfig.from_environment(environment | {"RANKMEM_COMMAND": "full"})
    told = facts.session_facts(full, "s", detected, "2")
    assert told["command"] == "~/train.py --out=~/x --token *** /home/mellow a:~"


def test_no_variable_of_the_environment_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MY_TOKEN", "AWS_SECRET_ACCESS_KEY", "HOME", "RANKMEM_TOKEN_FILE", "HF_HOME"):
        monkeypatch.setenv(name, "/canary/of/the/environment")
    config = AgentConfig.from_environment({**os.environ, "RANKMEM_COMMAND": "full"})
    detected = DetectedRank.__new__(DetectedRank)
    detected.world_size, detected.attempt, detected.rank, detected.local_rank = 1, 0, 0, 0
    told = [
        facts.session_facts(config, "s", detected, "2"),
        facts.rank_facts("s", detected),
        facts.host_facts(),
        {"root": facts.project_root(), "privacy": config.privacy.facts()},
    ]
    assert "canary" not in json.dumps(told)


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/home/me/lib/x.py", "~/lib/x.py"),
        ("/home/me", "~"),
        ("/home/mellow/x.py", "/home/mellow/x.py"),
        ("/home/me/work/x.py", "W/x.py"),
        ("/scratch/p/x.py", "x.py"),
        ("/mnt/home/me/x.py", "/mnt/home/me/x.py"),
        ("<string>", "<string>"),
    ],
)
def test_the_longest_beginning_of_whole_folders_is_cut(path: str, shown: str) -> None:
    privacy = Privacy.from_text("/home/me=~, /home/me/work/=W,/scratch/p=", files=True)
    assert privacy.path(path) == shown
    assert Privacy.from_facts(json.loads(json.dumps(privacy.facts()))) == privacy


@pytest.mark.parametrize("text", ["home=~", "/home/me", "/=x", "=~"])
def test_a_map_that_cannot_be_used_is_refused(text: str) -> None:
    with pytest.raises(RankmemError, match="RANKMEM_PATH_MAP"):
        Privacy.from_text(text, files=True)


@pytest.mark.parametrize("value", ["full", "names", "off"])
def test_stacks_have_files_or_names_or_are_not_gathered(value: str) -> None:
    config = AgentConfig.from_environment({"RANKMEM_STACKS": value})
    assert (config.stacks, config.privacy.files) == (value != "off", value == "full")


@pytest.mark.parametrize(
    ("privacy", "expected"),
    [
        ({}, [("model.py", 7), ("/home/me/lib/x.py", 1)]),
        ({"files": True, "path_map": [["/home/me", "~"]]}, [("model.py", 7), ("~/lib/x.py", 1)]),
        ({"files": False, "path_map": []}, [("", 0), (OUTSIDE, 0)]),
    ],
)
def test_stacks_leave_the_host_as_the_spool_says_and_are_hashed_so(
    tmp_path: Path, privacy: dict[str, object], expected: list[tuple[str, int]]
) -> None:
    from rankmem_agent.spool.layout import Kind
    from spool_log import Log

    log = Log(tmp_path / "spool")
    spool: SyntheticSpool = log.spool
    meta = json.loads((spool.path / "meta.json").read_text())
    changed = meta | {"project_root": "/home/me/project", "privacy": privacy}
    (spool.path / "meta.json").write_text(json.dumps(changed))
    stack = spool.stack([("/home/me/project/model.py", "forward", 7), ("/home/me/lib/x.py", "f", 1)])
    log.add(Kind.CALL_BEGIN, call_id=1, e=spool.string("op"))
    log.add(Kind.CALL_END, call_id=1, e=stack)
    rows = log.rows()
    assert [(row["file_path"], row["line_number"]) for row in rows["stack_frame"]] == expected
    assert [row["function"] for row in rows["stack_frame"]] == ["forward", "f"]
    told = [(file, line, name) for (file, line), name in zip(expected, ("forward", "f"), strict=True)]
    assert rows["operator_call"][0]["stack_id"] == stack_hash(told)


def test_a_stack_without_files_is_shown_by_its_functions(tmp_path: Path) -> None:
    frames = [("<outside>", 0, "Linear.forward"), ("", 0, "MLP.forward"), ("", 0, "main")]
    with empty_database(str(tmp_path / "v.duckdb")) as connection:
        rows = [
            {"stack_id": 1, "ordering": n, "file_path": file, "line_number": line, "function": function}
            for n, (file, line, function) in enumerate(frames)
        ]
        store_rows(connection, "stack_frame", rows)
        shown = connection.execute("SELECT line, function, frames FROM stack").fetchall()
    assert shown == [("MLP.forward", "MLP.forward", ["Linear.forward", "MLP.forward", "main"])]
