-- Question: At which instant did the sum over all ranks stand highest, and what was each rank's share then? Exact.
-- Parameters:
--   of_session: session id
-- Columns:
--   device_type: the sum is over the devices of one type
--   job_peak_bytes (bytes): requested bytes of all ranks together at that instant
--   job_peak_ns (ns, common clock): the first such instant
--   job_peak_utc: the same, readable
--   attempt, rank, device: a device with its share
--   host_name: its host
--   requested_bytes (bytes): its share
--   seq: the rank's event that gave it; live_at_seq tells what was alive
--   clock_error_ns (ns): bound of that rank's clock offset
CREATE OR REPLACE MACRO job_peak(of_session) AS TABLE
WITH track AS MATERIALIZED (
    SELECT
        b.attempt,
        b.rank,
        b.device,
        split_part(b.device, ':', 1) AS device_type,
        coalesce(s.offset_ns, 0) AS offset_ns,
        s.error_ns,
        s.host_uid,
        greatest(s.ended_ns, b.last_ns + coalesce(s.offset_ns, 0)) AS closed_ns,
        s.ended_ns IS NOT NULL AS is_closed
    FROM (
        SELECT session_id, attempt, rank, device, max(last_ns) AS last_ns
        FROM memory_bucket
        WHERE session_id = of_session
        GROUP BY ALL
    ) AS b
    LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
),
closing AS (
    SELECT
        attempt, rank, device, 9223372036854775807 AS seq_last,
        closed_ns AS first_ns, closed_ns AS last_ns, 0::BIGINT AS peak_bytes, 0::BIGINT AS last_bytes, NULL::BIGINT AS part, device_type
    FROM track
    WHERE is_closed
),
coarse AS MATERIALIZED (
    SELECT
        *,
        lag(last_bytes, 1, 0) OVER (PARTITION BY attempt, rank, device ORDER BY seq_last) AS entry_bytes,
        first_ns // 1000000000 AS window_first,
        last_ns // 1000000000 AS window_last
    FROM (
        SELECT
            b.attempt,
            b.rank,
            b.device,
            max(b.seq_last) AS seq_last,
            min(b.first_ns) + any_value(t.offset_ns) AS first_ns,
            max(b.last_ns) + any_value(t.offset_ns) AS last_ns,
            max(b.requested_peak_bytes) AS peak_bytes,
            arg_max(b.requested_last_bytes, b.seq_last) AS last_bytes,
            b.bucket_ns // 1000000000 AS part,
            any_value(t.device_type) AS device_type
        FROM memory_bucket AS b
        INNER JOIN track AS t USING (attempt, rank, device)
        WHERE b.session_id = of_session
        GROUP BY b.attempt, b.rank, b.device, part
        UNION ALL
        FROM closing
    )
),
coarse_touch AS (
    SELECT device_type, attempt, rank, device, window_first AS window_number, peak_bytes, entry_bytes, seq_last FROM coarse
    UNION ALL
    SELECT device_type, attempt, rank, device, window_last, peak_bytes, entry_bytes, seq_last FROM coarse WHERE window_last > window_first
),
coarse_bound AS MATERIALIZED (
    SELECT device_type, window_number, climb_bytes + sum(step_bytes) OVER (PARTITION BY device_type ORDER BY window_number) AS bound_bytes, climb_bytes
    FROM (
        SELECT device_type, window_number, sum(climb_bytes) AS climb_bytes, sum(step_bytes) AS step_bytes
        FROM (
            SELECT device_type, window_number, greatest(max(peak_bytes), max(entry_bytes)) - arg_min(entry_bytes, seq_last) AS climb_bytes, 0::BIGINT AS step_bytes
            FROM coarse_touch GROUP BY device_type, attempt, rank, device, window_number
            UNION ALL
            SELECT device_type, window_last + 1, 0, last_bytes - entry_bytes FROM coarse
        )
        GROUP BY device_type, window_number
    )
),
probe AS MATERIALIZED (
    SELECT c.device_type, arg_max(b.requested_peak_ns + t.offset_ns, b.requested_peak_bytes) AS time_ns
    FROM (SELECT device_type, arg_max(window_number, bound_bytes) AS window_number FROM coarse_bound GROUP BY device_type) AS c
    INNER JOIN track AS t USING (device_type)
    INNER JOIN memory_bucket AS b ON b.session_id = of_session AND b.attempt = t.attempt AND b.rank = t.rank AND b.device = t.device
       AND (b.requested_peak_ns + t.offset_ns) // 1000000000 = c.window_number
    GROUP BY c.device_type
),
probe_value AS (
    -- what each track held at the probe's instant: its last event by then, in the pieces around, else the piece before
    SELECT device_type, attempt, rank, device, arg_max(bytes, seq) AS bytes
    FROM (
        SELECT p.device_type, c.attempt, c.rank, c.device, c.last_bytes AS bytes, c.seq_last AS seq
        FROM probe AS p INNER JOIN coarse AS c ON c.device_type = p.device_type AND c.last_ns <= p.time_ns
        UNION ALL
        SELECT p.device_type, e.attempt, e.rank, e.device, e.requested_bytes, e.seq
        FROM memory_event AS e
        INNER JOIN track AS t USING (attempt, rank, device)
        INNER JOIN probe AS p ON p.device_type = t.device_type
        WHERE e.session_id = of_session
          AND e.requested_bytes IS NOT NULL
          AND e.time_ns >= (SELECT min(p.time_ns - t.offset_ns) FROM probe AS p INNER JOIN track AS t USING (device_type)) - 1000000000
          AND e.time_ns <= (SELECT max(p.time_ns - t.offset_ns) FROM probe AS p INNER JOIN track AS t USING (device_type))
          AND e.time_ns + t.offset_ns <= p.time_ns
    )
    GROUP BY ALL
),
floor_1 AS MATERIALIZED (
    SELECT device_type, sum(bytes) AS bytes FROM probe_value GROUP BY device_type
),
hot AS MATERIALIZED (
    SELECT b.device_type, b.window_number
    FROM coarse_bound AS b INNER JOIN floor_1 AS f USING (device_type)
    WHERE b.bound_bytes >= f.bytes AND b.climb_bytes IS NOT NULL
),
hot_piece AS MATERIALIZED (
    SELECT DISTINCT c.attempt, c.rank, c.device, c.part
    FROM coarse AS c INNER JOIN hot AS h ON h.device_type = c.device_type AND h.window_number BETWEEN c.window_first AND c.window_last
    WHERE c.part IS NOT NULL
),
fine_raw AS (
    SELECT attempt, rank, device, time_ns // 3906250 AS part,
        max(seq) AS seq_last,
        max(requested_bytes) AS peak_bytes, arg_max(requested_bytes, seq) AS last_bytes
    FROM memory_event
    WHERE session_id = of_session AND requested_bytes IS NOT NULL
      AND time_ns >= (SELECT min(part) FROM hot_piece) * 1000000000
      AND time_ns < (SELECT max(part) + 1 FROM hot_piece) * 1000000000
    GROUP BY ALL
),
fine AS MATERIALIZED (
    SELECT *, lag(last_bytes, 1, 0) OVER (PARTITION BY attempt, rank, device ORDER BY seq_last) AS entry_bytes,
       first_ns // 3906250 AS window_first, last_ns // 3906250 AS window_last
    FROM (
        SELECT f.attempt, f.rank, f.device, f.seq_last, f.part * 3906250 + t.offset_ns AS first_ns, f.part * 3906250 + 3906249 + t.offset_ns AS last_ns, f.peak_bytes, f.last_bytes, f.part, t.device_type
        FROM fine_raw AS f
        INNER JOIN track AS t USING (attempt, rank, device)
        SEMI JOIN hot_piece AS h ON h.attempt = f.attempt AND h.rank = f.rank AND h.device = f.device AND h.part = f.part // 256
        UNION ALL
        SELECT c.attempt, c.rank, c.device, c.seq_last, c.first_ns, c.last_ns, c.peak_bytes, c.last_bytes, NULL, c.device_type
        FROM coarse AS c ANTI JOIN hot_piece AS h ON h.attempt = c.attempt AND h.rank = c.rank AND h.device = c.device AND h.part = c.part
    )
),
fine_touch AS (
    SELECT device_type, attempt, rank, device, window_first AS window_number, peak_bytes, entry_bytes, seq_last FROM fine
    UNION ALL
    SELECT device_type, attempt, rank, device, window_last, peak_bytes, entry_bytes, seq_last FROM fine WHERE window_last > window_first
),
fine_bound AS MATERIALIZED (
    SELECT device_type, window_number, sum(step_bytes) OVER (PARTITION BY device_type ORDER BY window_number) AS base_bytes, climb_bytes, straddles
    FROM (
        SELECT device_type, window_number, sum(climb_bytes) AS climb_bytes, sum(step_bytes) AS step_bytes, bool_or(straddles) AS straddles
        FROM (
            SELECT device_type, window_number, greatest(max(peak_bytes), max(entry_bytes)) - arg_min(entry_bytes, seq_last) AS climb_bytes, 0::BIGINT AS step_bytes, false AS straddles
            FROM fine_touch GROUP BY device_type, attempt, rank, device, window_number
            UNION ALL
            SELECT device_type, window_last + 1, NULL, last_bytes - entry_bytes, false FROM fine
            UNION ALL
            SELECT device_type, window_last, NULL, 0, true FROM fine WHERE window_last > window_first
        )
        GROUP BY device_type, window_number
    )
),
fine_hot AS MATERIALIZED (
    SELECT b.device_type, b.window_number, b.base_bytes
    FROM fine_bound AS b
    INNER JOIN hot AS h ON h.device_type = b.device_type AND h.window_number = b.window_number // 256
    INNER JOIN (
        SELECT device_type, max(bytes) AS bytes
        FROM (
            FROM floor_1
            UNION ALL
            SELECT b.device_type, b.base_bytes FROM fine_bound AS b
            INNER JOIN hot AS h ON h.device_type = b.device_type AND h.window_number = b.window_number // 256
            WHERE NOT b.straddles
        )
        GROUP BY device_type
    ) AS f ON f.device_type = b.device_type
    WHERE b.climb_bytes IS NOT NULL AND b.base_bytes + b.climb_bytes >= f.bytes
),
fine_piece AS MATERIALIZED (
    SELECT f.device_type, f.attempt, f.rank, f.device, f.part, f.entry_bytes, f.first_ns, f.seq_last, h.window_number, h.base_bytes
    FROM fine AS f INNER JOIN fine_hot AS h ON h.device_type = f.device_type AND h.window_number = f.window_first
    UNION ALL
    SELECT f.device_type, f.attempt, f.rank, f.device, f.part, f.entry_bytes, f.first_ns, f.seq_last, h.window_number, h.base_bytes
    FROM fine AS f INNER JOIN fine_hot AS h ON h.device_type = f.device_type AND h.window_number = f.window_last AND f.window_last > f.window_first
),
picked AS (
    SELECT attempt, rank, device, seq, time_ns, part, requested_bytes
    FROM memory_event INNER JOIN (SELECT DISTINCT part FROM fine_piece) AS h ON h.part = time_ns // 3906250
    WHERE session_id = of_session AND requested_bytes IS NOT NULL
      AND time_ns >= (SELECT min(fine_piece.part) FROM fine_piece) * 3906250
      AND time_ns < (SELECT max(fine_piece.part) + 1 FROM fine_piece) * 3906250
),
item AS (
    SELECT p.device_type, p.window_number, p.base_bytes, p.attempt, p.rank, p.device, e.seq, e.time_ns + t.offset_ns AS time_ns, e.requested_bytes,
      e.requested_bytes - lag(e.requested_bytes, 1, p.entry_bytes) OVER (PARTITION BY p.window_number, p.attempt, p.rank, p.device, p.part ORDER BY e.seq) AS delta_bytes
    FROM picked AS e
    INNER JOIN fine_piece AS p USING (attempt, rank, device, part)
    INNER JOIN track AS t USING (attempt, rank, device)
    UNION ALL
    SELECT device_type, window_number, base_bytes, attempt, rank, device, seq_last, first_ns, 0, -entry_bytes
    FROM fine_piece WHERE part IS NULL
),
sweep AS MATERIALIZED (
    SELECT *,
      base_bytes + sum(delta_bytes) OVER (PARTITION BY device_type, window_number ORDER BY time_ns, attempt, rank, seq ROWS UNBOUNDED PRECEDING) AS total_bytes
    FROM item
),
top AS MATERIALIZED (
    SELECT DISTINCT ON (device_type) device_type, window_number, total_bytes, time_ns, attempt, rank, seq
    FROM sweep
    WHERE time_ns // 3906250 = window_number
    ORDER BY device_type, total_bytes DESC, time_ns, attempt, rank, seq
),
share AS (
    SELECT device_type, attempt, rank, device, arg_max(bytes, seq) AS bytes, max(seq) AS seq
    FROM (
        SELECT t.device_type, s.attempt, s.rank, s.device, s.requested_bytes AS bytes, s.seq
        FROM top AS t INNER JOIN sweep AS s ON s.device_type = t.device_type AND s.window_number = t.window_number
          AND (s.time_ns, s.attempt, s.rank, s.seq) <= (t.time_ns, t.attempt, t.rank, t.seq)
        UNION ALL
        SELECT t.device_type, f.attempt, f.rank, f.device, f.last_bytes, f.seq_last
        FROM top AS t INNER JOIN fine AS f ON f.device_type = t.device_type AND f.window_last < t.window_number
    )
    GROUP BY ALL
)
SELECT
    t.device_type,
    t.total_bytes::BIGINT AS job_peak_bytes,
    t.time_ns AS job_peak_ns,
    utc_of(t.time_ns) AS job_peak_utc,
    s.attempt,
    s.rank,
    s.device,
    h.host_name,
    s.bytes AS requested_bytes,
    s.seq,
    k.error_ns AS clock_error_ns
FROM top AS t
INNER JOIN share AS s USING (device_type)
INNER JOIN track AS k ON k.attempt = s.attempt AND k.rank = s.rank AND k.device = s.device
LEFT JOIN host_info AS h ON k.host_uid = h.host_uid
WHERE s.bytes <> 0
ORDER BY t.device_type, s.bytes DESC, s.attempt, s.rank, s.device;

COMMENT ON MACRO TABLE job_peak IS 'The instant of the highest sum over all ranks, by device type, with each rank''s share.';
