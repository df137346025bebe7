"""What a client may show: paths travel, secrets stay in files that nobody else can read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rankmem_agent.preload.launch import environment
from rankmem_agent.spool.election import shipper_environment
from rankmem_protos.credentials import CLIENT_VARIABLES, Credentials, read_private, tokens_of
from rankmem_protos.errors import Code, RankmemError

TOKEN = "a-token-of-forty-characters-1234567890ab"


def token_file(folder: Path, text: str = TOKEN + "\n", mode: int = 0o600) -> Path:
    path = folder / "some.token"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_token_is_read_from_its_file_and_stands_nowhere_else(tmp_path: Path) -> None:
    given = Credentials(token_file=str(token_file(tmp_path)))
    assert given.token() == TOKEN
    assert TOKEN not in repr(given) + json.dumps(given.facts()) + str(given.environment())


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644, 0o610])
def test_a_secret_that_others_may_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(RankmemError, match=f"mode {mode:04o}") as caught:
        tokens_of(token_file(tmp_path, mode=mode), "--token-file")
    assert caught.value.code is Code.DENIED
    assert "chmod 600" in caught.value.hint


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_secret_of_another_user_is_refused(tmp_path: Path) -> None:
    path = token_file(tmp_path)
    os.chown(path, 4242, 4242)
    with pytest.raises(RankmemError, match="belongs to another user"):
        read_private(path, "--tls-key")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "holds no token"),
        ("# a comment alone\n\n", "holds no token"),
        ("short\n", "not 16 to 512"),
        ("two words in a single line of text\n", "without blanks"),
        ("x" * 513, "not 16 to 512"),
        ("ein-tökèn-mit-umlauten-1234", "characters outside of ASCII"),
    ],
)
def test_what_is_no_token_is_refused_without_saying_it(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(RankmemError, match=what) as caught:
        tokens_of(token_file(tmp_path, text), "--token-file")
    for line in filter(None, text.split()):
        assert line == "a" or len(line) < 6 or line not in str(caught.value)


def test_an_aggregators_file_may_hold_several_tokens_with_comments(tmp_path: Path) -> None:
    path = token_file(tmp_path, f"# until March\n{TOKEN}\n\n  {TOKEN[::-1]}  \n")
    assert tokens_of(path, "--ingest-token-file") == (TOKEN, TOKEN[::-1])


def test_a_missing_file_is_said_with_its_option() -> None:
    with pytest.raises(RankmemError, match="--token-file: there is no file /nowhere") as caught:
        Credentials(token_file="/nowhere").token()
    assert caught.value.code is Code.NOT_FOUND


@pytest.mark.parametrize("given", [{"tls_cert": "c"}, {"tls_key": "k"}, {"tls_cert": "c", "tls_key": "k"}])
def test_a_certificate_needs_its_key_and_a_ca(given: dict[str, str]) -> None:
    with pytest.raises(RankmemError, match="--tls-cert"):
        Credentials.from_environment({}, **given)


def test_an_option_wins_over_the_environment() -> None:
    given = {"RANKMEM_TLS_CA": "env.pem", "RANKMEM_TOKEN_FILE": "env.token", "RANKMEM_INSECURE": "1"}
    found = Credentials.from_environment(given, tls_ca=Path("option.pem"), token_file=None)
    assert (found.tls_ca, found.token_file, found.insecure) == ("option.pem", "env.token", True)


def test_what_goes_to_other_processes_are_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = Credentials(tls_ca="ca.pem", token_file="some.token")
    assert given.environment() == {
        "RANKMEM_TLS_CA": str(tmp_path / "ca.pem"),
        "RANKMEM_TOKEN_FILE": str(tmp_path / "some.token"),
    }
    assert Credentials.from_facts(json.loads(json.dumps(given.facts()))) == given.absolute()
    assert Credentials(tls_ca="public").environment() == {"RANKMEM_TLS_CA": "public"}
    shipper = shipper_environment({"RANKMEM_TOKEN_FILE": "some.token", "PATH": "/bin"})
    assert shipper["RANKMEM_TOKEN_FILE"] == str(tmp_path / "some.token")


def test_a_job_into_another_aggregator_does_not_inherit_these_credentials() -> None:
    base = dict.fromkeys(CLIENT_VARIABLES, "/somewhere")
    made = environment(base, session_id="s", aggregator="127.0.0.1:1")
    assert not CLIENT_VARIABLES & made.keys()
    made = environment(base, session_id="s", aggregator="h:1", credentials=Credentials(token_file="/t"))
    assert {name: made[name] for name in CLIENT_VARIABLES & made.keys()} == {"RANKMEM_TOKEN_FILE": "/t"}
