-- Question: Which named ranges of a rank touch a range of time?
-- Parameters:
--   session (text), attempt, rank: the rank
--   offset_ns (ns): added to its host's times
--   from_ns, until_ns (ns, common clock): the range
-- Columns:
--   marker_id, name, kind, depth, thread: as in marker
--   started_ns, ended_ns (ns, common clock): ended_ns is NULL where it never ended
SELECT
    marker_id,
    name,
    kind,
    depth,
    thread,
    started_ns + $offset_ns::BIGINT AS started_ns,
    ended_ns + $offset_ns::BIGINT AS ended_ns
FROM marker
WHERE session_id = $session
    AND attempt = $attempt
    AND rank = $rank
    AND started_ns + $offset_ns::BIGINT <= $until_ns
    AND (ended_ns IS NULL OR ended_ns + $offset_ns::BIGINT >= $from_ns)
ORDER BY started_ns, depth, marker_id;
