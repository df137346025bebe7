"""Rights by token: who may write, who may read, and that a change of the file counts."""

from __future__ import annotations

import hmac
import os
from pathlib import Path

import pytest

from rankmem_aggregator.server.tokens import Right, Tokens
from rankmem_protos.errors import Code, RankmemError

WRITER, READER, BOTH = (f"{name}-0123456789abcdef" for name in ("writer", "reader", "both"))
INGEST = "/rankmem.v1.Collector/Ingest"
SQL = "/rankmem.v1.Query/Sql"


def written(path: Path, *tokens: str) -> Path:
    path.write_text("\n".join(tokens))
    path.chmod(0o600)
    return path


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(
        {
            Right.INGEST: written(tmp_path / "i", WRITER, BOTH),
            Right.QUERY: written(tmp_path / "q", READER, BOTH),
        }
    )


def passes(tokens: Tokens, method: str, shown: str | None) -> bool:
    return tokens.refusal(method, {} if shown is None else {"authorization": shown}) is None


@pytest.mark.parametrize(
    ("shown", "may_write", "may_read"),
    [
        (f"Bearer {WRITER}", True, False),
        (f"Bearer {READER}", False, True),
        (f"Bearer {BOTH}", True, True),
        (f"Bearer {WRITER[:-1]}", False, False),
        (f"Bearer {WRITER}x", False, False),
        (f"Bearer  {WRITER}", False, False),
        (f"Bearer {WRITER.upper()}", False, False),
        (WRITER, False, False),
        ("Bearer ", False, False),
        ("", False, False),
        (None, False, False),
        ("Bearer \udcff\udcfe not a token", False, False),
    ],
)
def test_a_token_gives_its_right_and_no_other(
    tokens: Tokens, shown: str | None, may_write: bool, may_read: bool
) -> None:
    assert (passes(tokens, INGEST, shown), passes(tokens, SQL, shown)) == (may_write, may_read)


def test_health_is_open_and_all_else_asks_for_a_token(tokens: Tokens) -> None:
    assert passes(tokens, "/grpc.health.v1.Health/Check", None)
    reflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    for method in (reflection, "/rankmem.v1.Query/Unknown", "/unknown/Method", "", "/"):
        assert not passes(tokens, method, None), method
    assert passes(tokens, reflection, f"Bearer {READER}")


def test_a_right_without_a_file_belongs_to_nobody(tmp_path: Path) -> None:
    tokens = Tokens({Right.INGEST: written(tmp_path / "i", WRITER), Right.QUERY: None})
    assert passes(tokens, INGEST, f"Bearer {WRITER}")
    for shown in (f"Bearer {WRITER}", "Bearer ", None):
        assert not passes(tokens, SQL, shown)


def test_without_files_everything_is_open() -> None:
    tokens = Tokens({Right.INGEST: None, Right.QUERY: None})
    assert not tokens.are_asked
    assert passes(tokens, INGEST, None)


def test_a_changed_file_counts_at_once_and_a_broken_one_changes_nothing(
    tokens: Tokens, tmp_path: Path
) -> None:
    def replace(*lines: str, mode: int = 0o600) -> None:
        new = written(tmp_path / "new", *lines)
        new.chmod(mode)
        os.replace(new, tmp_path / "i")

    replace(BOTH)
    assert not passes(tokens, INGEST, f"Bearer {WRITER}")
    assert passes(tokens, INGEST, f"Bearer {BOTH}")
    replace("short")
    assert passes(tokens, INGEST, f"Bearer {BOTH}")
    replace(WRITER, mode=0o644)
    assert not passes(tokens, INGEST, f"Bearer {WRITER}")
    (tmp_path / "i").unlink()
    assert passes(tokens, INGEST, f"Bearer {BOTH}")
    replace(WRITER)
    assert passes(tokens, INGEST, f"Bearer {WRITER}")
    assert not passes(tokens, INGEST, f"Bearer {BOTH}")


def test_every_token_that_counts_is_compared_in_constant_time(
    tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []

    def counting(a: bytes, b: bytes) -> bool:
        compared.append((len(a), len(b)))
        return a == b

    monkeypatch.setattr(hmac, "compare_digest", counting)
    tokens.rights_of(WRITER)  # the first of its file: the others are compared nevertheless
    tokens.rights_of("x")
    assert compared == [(32, 32)] * 8


def test_refusals_tell_a_stranger_from_one_who_may_do_something_else_and_never_the_token(
    tokens: Tokens,
) -> None:
    shown = "Bearer guessed-0123456789abcdef"
    for method, metadata, status in (
        (SQL, {}, "UNAUTHENTICATED"),
        (SQL, {"authorization": shown}, "UNAUTHENTICATED"),
        (SQL, {"authorization": f"Bearer {WRITER}"}, "PERMISSION_DENIED"),
    ):
        refusal = tokens.refusal(method, metadata)
        assert refusal is not None
        assert refusal.status.name == status
        assert refusal.error.code is Code.DENIED
        assert "0123456789" not in str(refusal.error)


def test_an_unusable_file_stops_the_start(tmp_path: Path) -> None:
    path = written(tmp_path / "i", WRITER)
    path.chmod(0o644)
    with pytest.raises(RankmemError, match="--ingest-token-file"):
        Tokens({Right.INGEST: path})
