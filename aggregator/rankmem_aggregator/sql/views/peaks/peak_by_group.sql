-- Question: How high did each group of a rank's blocks get by itself, and what did it hold at the rank's peak? Exact.
-- Parameters:
--   of_session: session id
--   of_group: stream, component, category, phase, operator, module, line, step or annotation
--   of_rank: global rank; NULL, the default, for all (operator, module, line, step, annotation: minutes over 100 M events)
-- Columns:
--   attempt, rank, device: whose, on the attempt with the rank's highest peak
--   device_type: cpu, cuda, ...
--   host_name: its host
--   group_name: the group; NULL for blocks without one. Of category: what the bytes meant at the time
--   bytes_at_rank_peak (bytes): of its blocks alive at the rank's own peak; over all groups these add up to it
--   rank_peak_bytes (bytes): the rank's own peak
--   rank_peak_ns (ns, common clock): its instant
--   peak_bytes (bytes): the group's own peak, the highest that its blocks alone reached
--   peak_time_ns (ns, common clock): the first instant at which they did; NULL if only blocks older than the recording
--   peak_time_utc: the same, readable
--   peak_seq: the event after which they did; -1 for blocks older than the recording
-- Scatter: hosts
CREATE OR REPLACE MACRO peak_by_group(of_session, of_group, of_rank := NULL) AS TABLE
WITH top AS MATERIALIZED (
    SELECT attempt, rank, device, device_type, host_name, peak_requested_bytes, peak_time_ns, peak_seq
    FROM peak_by_rank
    WHERE session_id = of_session AND is_rank_peak AND (of_rank IS NULL OR rank = of_rank)
),
held AS (
    SELECT attempt, rank, device, group_name, live_bytes AS bytes
    FROM held_at_points(
        of_session, of_group, (SELECT list({attempt: attempt, rank: rank, device: device, seq: peak_seq}) FROM top)
    )
),
summit AS (
    SELECT
        g.attempt,
        g.rank,
        g.device,
        g.group_name,
        coalesce(any_value(h.bytes), 0)::BIGINT AS bytes_at_rank_peak,
        max(g.bytes)::BIGINT AS peak_bytes,
        arg_max(g.seq, (g.bytes, -g.seq)) AS peak_seq,
        CASE WHEN arg_max(g.seq, (g.bytes, -g.seq)) >= 0
            THEN arg_max(g.time_ns, (g.bytes, -g.seq)) END AS peak_time_ns
    FROM group_course(of_session, of_group, of_rank := of_rank) AS g
    SEMI JOIN top AS t ON t.attempt = g.attempt AND t.rank = g.rank AND t.device = g.device
    LEFT JOIN held AS h
        ON h.attempt = g.attempt
        AND h.rank = g.rank
        AND h.device = g.device
        AND h.group_name IS NOT DISTINCT FROM g.group_name
    GROUP BY g.attempt, g.rank, g.device, g.group_name
)
SELECT
    s.attempt,
    s.rank,
    s.device,
    t.device_type,
    t.host_name,
    s.group_name,
    s.bytes_at_rank_peak,
    t.peak_requested_bytes AS rank_peak_bytes,
    t.peak_time_ns AS rank_peak_ns,
    s.peak_bytes,
    s.peak_time_ns,
    utc_of(s.peak_time_ns) AS peak_time_utc,
    s.peak_seq
FROM summit AS s
INNER JOIN top AS t USING (attempt, rank, device)
ORDER BY s.rank, s.device, s.bytes_at_rank_peak DESC, s.peak_bytes DESC, s.group_name;

COMMENT ON MACRO TABLE peak_by_group IS 'A group''s bytes at the rank''s own peak, and the group''s own peak with its instant.';
