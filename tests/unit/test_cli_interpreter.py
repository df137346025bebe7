"""A Python that would ignore the agent is noticed in the command line."""

from __future__ import annotations

import pytest

from rankmem_cli.run.interpreter import option_at_fault


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("python -I train.py", "-I"),
        ("/usr/bin/python3.11 -E -u train.py", "-E"),
        ("python -uS train.py", "-S"),
        ("env A=1 python3 -X dev -Es -m trainer", "-E"),
        ("python -Im trainer", "-I"),
        ("python -W ignore -I train.py", "-I"),
        ("python -S -m rankmem_agent train.py", "-S"),
        ("python train.py -I", None),
        ("python -u -m trainer -E", None),
        ("python -c pass -S", None),
        ("python -I -m rankmem_agent train.py", None),
        ("python -Im rankmem_agent train.py", None),
        ("torchrun -E train.py", None),
        ("python", None),
        ("bash -E train.sh", None),
    ],
)
def test_it_finds_the_option(command: str, option: str | None) -> None:
    assert option_at_fault(command.split()) == option
