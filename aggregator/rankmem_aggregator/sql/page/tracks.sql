-- Question: Which devices did each rank use in which attempt, and how high did each stand? The highest first.
-- Parameters:
--   session (text): session id
-- Columns:
--   attempt, rank, device: which
--   offset_ns (ns): add to the host's times to get the common clock
--   peak_bytes (bytes): highest requested bytes
--   peak_seq: the event after which it stood so high
--   peak_ns (ns, common clock): when
--   host_name: its host
--   started_ns, ended_ns (ns, common clock): life of the process; ended_ns NULL while it runs
-- As peak_by_rank has it.
WITH top AS (
    SELECT
        attempt,
        rank,
        device,
        max(peak_bytes) AS peak_bytes,
        arg_max(peak_seq, (peak_bytes, -peak_seq)) AS peak_seq,
        arg_max(peak_ns, (peak_bytes, -peak_seq)) AS peak_ns
    FROM memory_cell($session, 1024)
    GROUP BY attempt, rank, device
)
SELECT
    t.attempt,
    t.rank,
    t.device,
    coalesce(s.offset_ns, 0) AS offset_ns,
    t.peak_bytes,
    t.peak_seq,
    t.peak_ns + coalesce(s.offset_ns, 0) AS peak_ns,
    coalesce(h.host_name, r.host_uid, 'unknown') AS host_name,
    s.started_ns,
    s.ended_ns
FROM top AS t
LEFT JOIN rank_info AS r ON r.session_id = $session AND r.attempt = t.attempt AND r.rank = t.rank
LEFT JOIN host_info AS h ON h.host_uid = r.host_uid
LEFT JOIN rank_span AS s ON s.session_id = $session AND s.attempt = t.attempt AND s.rank = t.rank
ORDER BY
    t.rank,
    split_part(t.device, ':', 1) IN ('cpu', 'pinned'),
    t.peak_bytes DESC,
    t.attempt DESC,
    t.device;
