"""The commits of an aggregator to a lake: files, then one of ``lake_progress``, then the tables' own logs.

Stage: ingest, in the writer's thread; files and logs of tables in threads of their own, as an object store
takes some 50 ms for each. ``lake_progress`` decides, and comes first: a file that is in a table's log counts,
whenever this process dies. What is missing there, for other engines, ``rankmem lake vacuum`` adds.
"""

from __future__ import annotations

import contextlib
import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from rankmem_aggregator.lake.batch_files import Prepared, write_files
from rankmem_aggregator.lake.catalog import PROGRESS_FILES_MAX, join_progress, made_progress
from rankmem_aggregator.lake.delta import DeltaLog
from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.lake.layout import TABLES, DataFile
from rankmem_aggregator.lake.moves import Mark, add_and_move
from rankmem_protos.errors import RankmemError

logger = logging.getLogger(__name__)

WRITE_THREADS: Final = 8
"""Files and logs of tables at once."""
WRITE_AGAIN_S: Final = 3600.0
"""Files that could not be made to count for so long, by the clock that goes on while a machine is suspended,
are written again: ``vacuum`` deletes what nothing names a day later."""


class Commits:
    """The commits of one writer.

    Args:
        files: the lake.
        writer: its name there.
    """

    def __init__(self, files: LakeFiles, writer: str) -> None:
        self._files, self._writer = files, writer
        self._threads = ThreadPoolExecutor(WRITE_THREADS, thread_name_prefix="rankmem-lake")
        self._num_logged = 0
        self._logging: list[Future[None]] = []
        self._mark = Mark(writer, 0)
        self._written_s = 0.0

    def write(self, what: Prepared) -> list[DataFile]:
        """Writes files, which do not count yet; again in the same places where that failed.

        Raises:
            OSError, pa.ArrowException, deltalake's errors: not all are there.
        """
        self.wait()
        self._mark = Mark(self._writer, self._mark.number + 1)
        self._written_s = time.time()
        return write_files(self._files, what, self._threads)

    def commit(self, what: Prepared, files: list[DataFile]) -> None:
        """Makes what was written last count. May be repeated: it is done once.

        Raises:
            MovedElsewhereError: another has moved one of its numbers; the files do not count.
            OSError, RankmemError: it is not known whether it is done.
        """
        if time.time() - self._written_s > WRITE_AGAIN_S and not self._mark.is_in(made_progress(self._files)):
            # Nothing names them, so a vacuum may have deleted them.
            self._written_s = time.time()
            write_files(self._files, what, self._threads)
        add_and_move(self._files, files, what.moves, self._mark)

    def log(self, files: list[DataFile]) -> None:
        """Adds files that count to their tables' logs, in the background; sometimes tidies lake_progress."""
        self._num_logged += 1
        by_table: dict[str, list[DataFile]] = {}
        for file in files:
            by_table.setdefault(file.table_name, []).append(file)
        self._logging = [
            self._threads.submit(self._log, name, of_table, self._num_logged)
            for name, of_table in by_table.items()
        ]
        if self._num_logged % PROGRESS_FILES_MAX == 0:
            self._logging.append(self._threads.submit(self._join))

    def remove(self, files: list[DataFile]) -> None:
        """Deletes files that do not count, as far as that goes; ``vacuum`` deletes the others."""
        for file in files:
            with contextlib.suppress(OSError):
                self._files.delete(file.path)

    def wait(self) -> None:
        """Waits until the logs have what was committed."""
        for made in self._logging:
            made.exception()

    def close(self) -> None:
        """Ends the threads; what they have not begun is left out."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _join(self) -> None:
        """Joins what the commits have added to lake_progress, which every reader reads."""
        try:
            join_progress(self._files)
        except RankmemError as exc:
            logger.debug("lake_progress is joined another time: %s", exc)

    def _log(self, table_name: str, files: list[DataFile], sequence: int) -> None:
        try:
            log = DeltaLog(self._files, TABLES[table_name])
            log.commit(files, (), app=self._writer, sequence=sequence)
        except RankmemError as exc:
            logger.warning("other engines do not see the newest rows of %s yet: %s", table_name, exc)
