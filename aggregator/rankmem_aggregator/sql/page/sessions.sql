-- Question: Which sessions are stored? The newest first.
-- Parameters:
--   session (text): this one alone; NULL: all
--   at_most (count): rows
-- Columns:
--   session_id, name, source, state, command, world_size, num_ranks, num_attempts, num_hosts, events, events_lost, complete,
--     highest_rank, peak_requested_bytes, duration_ns, torch_version, detail: as in session_overview
--   started, ended (text): instants in UTC, to the second; NULL where the recording has no times
SELECT
    session_id, name, source, state, command, world_size, num_ranks, num_attempts, num_hosts, events, events_lost,
    complete, highest_rank, peak_requested_bytes, duration_ns, torch_version, detail,
    strftime(started_utc, '%Y-%m-%d %H:%M:%S') AS started,
    strftime(ended_utc, '%Y-%m-%d %H:%M:%S') AS ended
FROM session_overview
WHERE $session::VARCHAR IS NULL OR session_id = $session
ORDER BY started_ns DESC, session_id DESC
LIMIT $at_most;
