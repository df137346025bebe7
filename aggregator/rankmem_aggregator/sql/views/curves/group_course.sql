-- Question: How did each group of a rank's blocks go up and down: as the summaries have it, and event by event since?
-- Parameters:
--   of_session: session id
--   of_group: stream, component, category or phase; of the others there are no summaries
--   of_rank: global rank; NULL, the default, for all
--   of_attempt: which start of the workers; NULL, the default, for all
-- Columns:
--   attempt, rank, device: whose
--   group_name: the group; NULL for blocks without one. Of category: what the bytes meant at the time
--   seq: the event; -1 for blocks older than the recording
--   time_ns (ns, common clock): when; NULL for blocks older than the recording
--   bytes (bytes): requested bytes of the group after it. Of a range of the summaries there are its highest and its
--     last alone; no point lies above the curve, and none of its peaks is missing
-- Scatter: hosts
CREATE OR REPLACE MACRO group_course(of_session, of_group, of_rank := NULL, of_attempt := NULL) AS TABLE
WITH bucket AS MATERIALIZED (
    SELECT g.*, coalesce(s.offset_ns, 0) AS offset_ns
    FROM group_bucket AS g
    INNER JOIN summary_progress AS p USING (session_id, attempt, rank)
    LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
    WHERE g.session_id = of_session
        AND g.group_by = of_group
        AND (of_rank IS NULL OR g.rank = of_rank)
        AND (of_attempt IS NULL OR g.attempt = of_attempt)
        AND g.seq_last <= p.seq
),
entry AS (
    SELECT attempt, rank, device, group_name, arg_max(last_bytes, seq_last) AS bytes
    FROM bucket
    GROUP BY attempt, rank, device, group_name
),
-- What came after. Within one event what goes comes first: a group is never counted higher than it stood after it.
recent AS (
    SELECT
        attempt,
        rank,
        device,
        group_name,
        seq,
        time_ns,
        sum(change_bytes) OVER course AS bytes,
        lead(seq) OVER course AS seq_after
    FROM block_change(of_session, of_group, of_rank := of_rank, of_attempt := of_attempt, only_recent := true)
    WINDOW course AS (
        PARTITION BY attempt, rank, device, group_name ORDER BY seq, change_bytes, time_ns
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    )
)
SELECT attempt, rank, device, group_name, peak_seq AS seq, peak_ns + offset_ns AS time_ns, peak_bytes AS bytes
FROM bucket
UNION ALL
SELECT attempt, rank, device, group_name, seq_last, last_ns + offset_ns, last_bytes
FROM bucket
WHERE seq_last > peak_seq
UNION ALL
SELECT c.attempt, c.rank, c.device, c.group_name, c.seq, c.time_ns, (c.bytes + coalesce(e.bytes, 0))::BIGINT
FROM recent AS c
LEFT JOIN entry AS e
    ON e.attempt = c.attempt
    AND e.rank = c.rank
    AND e.device = c.device
    AND e.group_name IS NOT DISTINCT FROM c.group_name
WHERE c.seq_after IS DISTINCT FROM c.seq;

COMMENT ON MACRO TABLE group_course IS 'Bytes of groups of blocks by the highest of each range: the basis of their peaks.';
