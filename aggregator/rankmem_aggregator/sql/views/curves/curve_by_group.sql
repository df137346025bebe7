-- Question: How did each group of a rank's blocks go up and down, event by event? Exact.
-- Parameters:
--   of_session: session id
--   of_rank: global rank
--   of_group: stream, component, category, phase, operator, module, line, step or annotation
--   of_attempt: which start of the workers; NULL, the default, for all
-- Columns:
--   attempt, device: which start, and which device
--   group_name: the group; NULL for blocks without one. Of category: what the bytes meant at the time
--   seq: the event; -1 for blocks older than the recording
--   time_ns (ns, common clock): when; NULL for blocks older than the recording
--   bytes (bytes): requested bytes of the group's blocks alive after it
-- Scatter: none
CREATE OR REPLACE MACRO curve_by_group(of_session, of_rank, of_group, of_attempt := NULL) AS TABLE
SELECT attempt, device, group_name, seq, time_ns, bytes::BIGINT AS bytes
FROM (
    SELECT
        attempt,
        device,
        group_name,
        seq,
        time_ns,
        sum(change_bytes) OVER course AS bytes,
        lead(seq) OVER course AS seq_after
    FROM block_change(of_session, of_group, of_rank := of_rank, of_attempt := of_attempt)
    WINDOW course AS (
        PARTITION BY attempt, device, group_name ORDER BY seq, change_bytes, time_ns
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    )
)
WHERE seq_after IS DISTINCT FROM seq
ORDER BY attempt, device, group_name, seq;

COMMENT ON MACRO TABLE curve_by_group IS 'Bytes of each group of a rank''s blocks after every event that changed it.';
