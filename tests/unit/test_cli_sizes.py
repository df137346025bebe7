"""A SIZE on the command line."""

from __future__ import annotations

import pytest

from rankmem_cli.args.sizes import parse_size
from rankmem_protos.errors import Code, RankmemError


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("104857600", 104857600),
        ("0", 0),
        ("7 B", 7),
        ("100MiB", 100 << 20),
        ("100 mb", 100 << 20),
        ("1.5GiB", 3 << 29),
        ("0.1K", 102),
        ("2T", 2 << 40),
    ],
)
def test_a_size_is_exact_in_bytes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "x", "-1", "1.MiB", "1 XiB", "1e9"])
def test_a_bad_size_is_refused_with_examples(text: str) -> None:
    with pytest.raises(RankmemError) as raised:
        parse_size(text)
    assert raised.value.code is Code.INVALID
    assert "MiB" in raised.value.hint
