-- Question: What did a device hold before its first event, where no early event rose above it?
-- Columns:
--   session_id, attempt, rank, device: whose
--   seq: its position in the log
--   time_ns (ns, the host's clock): when
--   requested_bytes (bytes): what the blocks older than the recording hold together
-- Scatter: hosts
CREATE OR REPLACE VIEW held_before AS
WITH older AS (
    SELECT session_id, attempt, rank, device, sum(size_bytes) AS bytes
    FROM allocation_record
    WHERE preexisting AND allocation_id < 0
    GROUP BY ALL
),
-- A log begins with these blocks, one by one: the first bucket that reaches their sum has the last of them.
reaching AS (
    SELECT
        b.session_id,
        b.attempt,
        b.rank,
        b.device,
        any_value(o.bytes) AS older_bytes,
        arg_min(b.requested_peak_seq, b.seq_first) AS seq,
        arg_min(b.requested_peak_ns, b.seq_first) AS time_ns,
        arg_min(b.requested_peak_bytes, b.seq_first) AS requested_bytes
    FROM memory_bucket AS b
    INNER JOIN older AS o USING (session_id, attempt, rank, device)
    WHERE b.requested_peak_bytes >= o.bytes
    GROUP BY b.session_id, b.attempt, b.rank, b.device
)
SELECT session_id, attempt, rank, device, seq, time_ns, requested_bytes
FROM reaching
WHERE requested_bytes = older_bytes;

COMMENT ON VIEW held_before IS 'What devices held before their first event: no row of memory_event has it.';
