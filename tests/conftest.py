"""What no file of tests may leave behind for the next one in the same process."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import repetitions  # noqa: F401  (loads the profile of random tests)


@pytest.fixture(scope="module", autouse=True)
def _umask_is_left_alone() -> Iterator[None]:
    """A store holds the process's umask while it is open: one that was not closed shows here."""
    before = os.umask(0o077)
    os.umask(before)
    yield
    after = os.umask(before)
    assert after == before, f"a test left the umask at {after:03o}: a store, or a database, is still open"
