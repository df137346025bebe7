"""The version of the ingest protocol (``collector.proto``), shared by shippers and the aggregator.

Imports nothing. An aggregator refuses a Hello with any other version.
"""

from __future__ import annotations

from typing import Final

PROTOCOL_VERSION: Final = 1
