-- Question: For each group of ranks, at which instant did the sum over them stand highest, and what was each share? Exact.
-- Parameters:
--   of_session: session id
--   of_group: job (all ranks), host, device, dp, tp, pp, cp or ep
-- Columns:
--   device_type: the sum is over the devices of one type
--   group_key: what the group is known by; see rank_group
--   group_name: host name, device, or coordinate; NULL for job and where it is not known
--   group_peak_bytes (bytes): requested bytes of the group's ranks together at that instant
--   group_peak_ns (ns, common clock): the first such instant
--   group_peak_utc: the same, readable
--   attempt, rank, device: a device with its share
--   host_name: its host
--   requested_bytes (bytes): its share
--   seq: the rank's event that gave it; live_at_seq tells what was alive
--   clock_error_ns (ns): bound of that rank's clock offset
CREATE OR REPLACE MACRO group_peak(of_session, of_group) AS TABLE
WITH
-- A track is a device of a rank of an attempt. Tracks are numbered so that, among events of one instant, the
-- order by (track, seq) is the one by (attempt, rank, seq); kinds number the device types, each
-- group apart.
track AS MATERIALIZED (
    SELECT
        (row_number() OVER (ORDER BY b.attempt, b.rank, b.device))::INTEGER AS track,
        (dense_rank() OVER (ORDER BY split_part(b.device, ':', 1), b.group_key))::INTEGER AS kind,
        (dense_rank() OVER (ORDER BY b.attempt, b.rank))::INTEGER AS worker,
        split_part(b.device, ':', 1) AS device_type,
        b.attempt,
        b.rank,
        b.device,
        b.group_key,
        b.group_name,
        s.host_uid,
        s.error_ns,
        coalesce(s.offset_ns, 0) AS offset_ns,
        -- Its bytes are gone when its process is; never before its last event, whatever the clocks say.
        CASE WHEN s.ended_ns IS NOT NULL
            THEN greatest(s.ended_ns, b.last_ns + coalesce(s.offset_ns, 0)) END AS closed_ns
    FROM (
        SELECT b.*, g.group_key, g.group_name
        FROM (
            SELECT session_id, attempt, rank, device, max(last_ns) AS last_ns
            FROM memory_bucket
            WHERE session_id = of_session
            GROUP BY ALL
        ) AS b
        LEFT JOIN rank_group(of_session, of_group) AS g USING (attempt, rank, device)
    ) AS b
    LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
),

-- First level: seconds. A piece is what a track did in one second of its host's clock (part); a closing is a
-- piece of its own, with the last place in the order. On the common clock a piece touches one window or two.
coarse AS MATERIALIZED (
    SELECT
        *,
        lag(last_bytes, 1, 0) OVER (PARTITION BY track ORDER BY seq_last) AS entry_bytes,
        first_ns // 1000000000 AS window_first,
        last_ns // 1000000000 AS window_last
    FROM (
        SELECT
            t.track,
            any_value(t.kind) AS kind,
            b.bucket_ns // 1000000000 AS part,
            max(b.seq_last) AS seq_last,
            min(b.first_ns) + any_value(t.offset_ns) AS first_ns,
            max(b.last_ns) + any_value(t.offset_ns) AS last_ns,
            max(b.requested_peak_bytes) AS peak_bytes,
            arg_max(b.requested_last_bytes, b.seq_last) AS last_bytes
        FROM memory_bucket AS b
        INNER JOIN track AS t USING (attempt, rank, device)
        WHERE b.session_id = of_session
        GROUP BY t.track, part
        UNION ALL
        SELECT track, kind, NULL, 9223372036854775807, closed_ns, closed_ns, 0, 0
        FROM track
        WHERE closed_ns IS NOT NULL
    )
),
coarse_touch AS (
    SELECT kind, track, seq_last, window_first AS window_number, peak_bytes, entry_bytes FROM coarse
    UNION ALL
    SELECT kind, track, seq_last, window_last, peak_bytes, entry_bytes FROM coarse WHERE window_last > window_first
),
-- base_bytes: the sum of all tracks where the window begins; climb_bytes: how far each can have risen above in
-- it, added up. No sum in the window exceeds base + climb.
coarse_bound AS MATERIALIZED (
    SELECT
        kind,
        window_number,
        climb_bytes,
        sum(step_bytes) OVER (PARTITION BY kind ORDER BY window_number) AS base_bytes
    FROM (
        SELECT kind, window_number, sum(climb_bytes) AS climb_bytes, sum(step_bytes) AS step_bytes
        FROM (
            SELECT
                kind,
                window_number,
                greatest(max(peak_bytes), max(entry_bytes)) - arg_min(entry_bytes, seq_last) AS climb_bytes,
                0 AS step_bytes
            FROM coarse_touch
            GROUP BY kind, track, window_number
            UNION ALL
            SELECT kind, window_last + 1, NULL, last_bytes - entry_bytes FROM coarse
        )
        GROUP BY kind, window_number
    )
),

-- A sum that was really reached, to prune by: the one at the highest bucket of the window with the best bound.
probe AS MATERIALIZED (
    SELECT t.kind, arg_max(b.requested_peak_ns + t.offset_ns, b.requested_peak_bytes) AS time_ns
    FROM (
        SELECT kind, arg_max(window_number, base_bytes + climb_bytes) AS window_number
        FROM coarse_bound
        GROUP BY kind
    ) AS c
    INNER JOIN track AS t USING (kind)
    INNER JOIN memory_bucket AS b
        ON b.attempt = t.attempt AND b.rank = t.rank AND b.device = t.device
        AND (b.requested_peak_ns + t.offset_ns) // 1000000000 = c.window_number
    WHERE b.session_id = of_session
    GROUP BY t.kind
),
probe_span AS MATERIALIZED (
    SELECT min(p.time_ns - t.offset_ns) - 1000000000 AS first_ns, max(p.time_ns - t.offset_ns) AS last_ns
    FROM probe AS p
    INNER JOIN track AS t USING (kind)
),
reached AS MATERIALIZED (
    SELECT kind, sum(bytes) AS bytes
    FROM (
        SELECT kind, track, arg_max(bytes, seq) AS bytes
        FROM (
            -- Nothing before its first event; and 0, if the window's bound came from a peak beside it.
            SELECT kind, track, 0 AS bytes, -1 AS seq FROM track
            UNION ALL
            SELECT p.kind, c.track, c.last_bytes, c.seq_last
            FROM probe AS p
            INNER JOIN coarse AS c ON c.kind = p.kind AND c.last_ns <= p.time_ns
            UNION ALL
            SELECT p.kind, t.track, e.requested_bytes, e.seq
            FROM memory_event AS e
            INNER JOIN track AS t USING (attempt, rank, device)
            INNER JOIN probe AS p ON p.kind = t.kind AND e.time_ns + t.offset_ns <= p.time_ns
            WHERE e.session_id = of_session
                AND e.requested_bytes IS NOT NULL
                AND e.time_ns >= (SELECT first_ns FROM probe_span)
                AND e.time_ns <= (SELECT last_ns FROM probe_span)
        )
        GROUP BY kind, track
    )
    GROUP BY kind
),
hot AS MATERIALIZED (
    SELECT b.kind, b.window_number
    FROM coarse_bound AS b
    INNER JOIN reached AS r USING (kind)
    WHERE b.climb_bytes IS NOT NULL AND b.base_bytes + b.climb_bytes >= r.bytes
),
hot_part AS MATERIALIZED (
    SELECT DISTINCT c.track, c.part
    FROM coarse AS c
    INNER JOIN hot AS h ON h.kind = c.kind AND (h.window_number = c.window_first OR h.window_number = c.window_last)
    WHERE c.part IS NOT NULL
),
hot_span AS MATERIALIZED (
    SELECT min(part) * 1000000000 AS first_ns, max(part) * 1000000000 + 1000000000 AS last_ns FROM hot_part
),

-- Second level: the same over pieces of 1/256 s, made from the events of what is left. The other seconds stay
-- single pieces, so that every track is covered from its first event to its last.
fine AS MATERIALIZED (
    SELECT
        *,
        lag(last_bytes, 1, 0) OVER (PARTITION BY track ORDER BY seq_last) AS entry_bytes,
        first_ns // 3906250 AS window_first,
        last_ns // 3906250 AS window_last
    FROM (
        SELECT
            t.track,
            t.kind,
            f.part,
            f.seq_last,
            f.part * 3906250 + t.offset_ns AS first_ns,
            f.part * 3906250 + 3906249 + t.offset_ns AS last_ns,
            f.peak_bytes,
            f.last_bytes
        FROM (
            SELECT
                attempt,
                rank,
                device,
                time_ns // 3906250 AS part,
                max(seq) AS seq_last,
                max(requested_bytes) AS peak_bytes,
                arg_max(requested_bytes, seq) AS last_bytes
            FROM memory_event
            WHERE session_id = of_session
                AND requested_bytes IS NOT NULL
                AND time_ns >= (SELECT first_ns FROM hot_span)
                AND time_ns < (SELECT last_ns FROM hot_span)
            GROUP BY attempt, rank, device, part
        ) AS f
        INNER JOIN track AS t USING (attempt, rank, device)
        SEMI JOIN hot_part AS h ON h.track = t.track AND h.part = f.part // 256
        UNION ALL
        SELECT c.track, c.kind, NULL, c.seq_last, c.first_ns, c.last_ns, c.peak_bytes, c.last_bytes
        FROM coarse AS c
        ANTI JOIN hot_part AS h ON h.track = c.track AND h.part = c.part
    )
),
fine_touch AS (
    SELECT kind, track, seq_last, window_first AS window_number, peak_bytes, entry_bytes FROM fine
    UNION ALL
    SELECT kind, track, seq_last, window_last, peak_bytes, entry_bytes FROM fine WHERE window_last > window_first
),
-- is_straddled: a piece reaches into the next window, so the sum at that window's beginning is not known.
fine_bound AS MATERIALIZED (
    SELECT
        b.kind,
        b.window_number,
        b.climb_bytes,
        b.base_bytes,
        b.is_straddled
    FROM (
        SELECT
            kind,
            window_number,
            climb_bytes,
            is_straddled,
            sum(step_bytes) OVER (PARTITION BY kind ORDER BY window_number) AS base_bytes
        FROM (
            SELECT
                kind,
                window_number,
                sum(climb_bytes) AS climb_bytes,
                sum(step_bytes) AS step_bytes,
                bool_or(is_straddled) AS is_straddled
            FROM (
                SELECT
                    kind,
                    window_number,
                    greatest(max(peak_bytes), max(entry_bytes)) - arg_min(entry_bytes, seq_last) AS climb_bytes,
                    0 AS step_bytes,
                    false AS is_straddled
                FROM fine_touch
                GROUP BY kind, track, window_number
                UNION ALL
                SELECT kind, window_last + 1, NULL, last_bytes - entry_bytes, false FROM fine
                UNION ALL
                SELECT kind, window_last, NULL, 0, true FROM fine WHERE window_last > window_first
            )
            GROUP BY kind, window_number
        )
    ) AS b
    INNER JOIN hot AS h ON h.kind = b.kind AND h.window_number = b.window_number // 256
),
fine_hot AS MATERIALIZED (
    SELECT b.kind, b.window_number, b.base_bytes
    FROM fine_bound AS b
    INNER JOIN (
        SELECT kind, max(bytes) AS bytes
        FROM (
            FROM reached
            UNION ALL
            SELECT kind, base_bytes FROM fine_bound WHERE NOT is_straddled
        )
        GROUP BY kind
    ) AS r USING (kind)
    WHERE b.climb_bytes IS NOT NULL AND b.base_bytes + b.climb_bytes >= r.bytes
),
fine_piece AS MATERIALIZED (
    SELECT f.track, f.part, f.entry_bytes, f.first_ns, h.kind, h.window_number, h.base_bytes
    FROM fine AS f
    INNER JOIN fine_hot AS h
        ON h.kind = f.kind
        AND h.window_number = f.window_first
    UNION ALL
    SELECT f.track, f.part, f.entry_bytes, f.first_ns, h.kind, h.window_number, h.base_bytes
    FROM fine AS f
    INNER JOIN fine_hot AS h
        ON h.kind = f.kind
        AND h.window_number = f.window_last
    WHERE f.window_last > f.window_first
),
fine_span AS MATERIALIZED (
    SELECT min(part) * 3906250 AS first_ns, max(part) * 3906250 + 3906250 AS last_ns FROM fine_piece
),

-- Last: the events of the windows that are left, in order of time. A piece that straddles two of them is swept
-- in both, each time from its own beginning.
change AS (
    SELECT
        p.kind,
        p.window_number,
        p.base_bytes,
        t.track,
        t.worker,
        e.seq,
        e.time_ns + t.offset_ns AS time_ns,
        e.requested_bytes,
        e.requested_bytes
        - lag(e.requested_bytes, 1, p.entry_bytes) OVER (
            PARTITION BY p.window_number, t.track, p.part ORDER BY e.seq
        ) AS step_bytes
    FROM (
        SELECT attempt, rank, device, seq, time_ns, w.part, requested_bytes
        FROM memory_event
        INNER JOIN (SELECT DISTINCT part FROM fine_piece) AS w ON w.part = time_ns // 3906250
        WHERE session_id = of_session
            AND requested_bytes IS NOT NULL
            AND time_ns >= (SELECT first_ns FROM fine_span)
            AND time_ns < (SELECT last_ns FROM fine_span)
    ) AS e
    INNER JOIN track AS t USING (attempt, rank, device)
    INNER JOIN fine_piece AS p ON p.track = t.track AND p.part = e.part
    UNION ALL
    SELECT
        p.kind, p.window_number, p.base_bytes, t.track, t.worker, 9223372036854775807, p.first_ns, 0, -p.entry_bytes
    FROM fine_piece AS p
    INNER JOIN track AS t USING (track)
    WHERE p.part IS NULL
),
sweep AS MATERIALIZED (
    SELECT
        *,
        base_bytes + sum(step_bytes) OVER (
            PARTITION BY kind, window_number ORDER BY time_ns, worker, seq ROWS UNBOUNDED PRECEDING
        ) AS total_bytes
    FROM change
),
top AS MATERIALIZED (
    SELECT DISTINCT ON (kind) kind, window_number, total_bytes, time_ns, worker, seq
    FROM sweep
    WHERE time_ns // 3906250 = window_number
    ORDER BY kind, total_bytes DESC, time_ns, worker, seq
),

-- Each track's share: its last event by then in that window, else where its last piece before left it.
share AS (
    SELECT track, arg_max(bytes, seq) AS bytes, max(seq) AS seq
    FROM (
        SELECT s.track, s.requested_bytes AS bytes, s.seq
        FROM top AS t
        INNER JOIN sweep AS s USING (kind, window_number)
        WHERE (s.time_ns, s.worker, s.seq) <= (t.time_ns, t.worker, t.seq)
        UNION ALL
        SELECT f.track, f.last_bytes, f.seq_last
        FROM top AS t
        INNER JOIN fine AS f ON f.kind = t.kind AND f.window_last < t.window_number
    )
    GROUP BY track
)
SELECT
    t.device_type,
    t.group_key,
    t.group_name,
    p.total_bytes::BIGINT AS group_peak_bytes,
    p.time_ns AS group_peak_ns,
    utc_of(p.time_ns) AS group_peak_utc,
    t.attempt,
    t.rank,
    t.device,
    h.host_name,
    s.bytes AS requested_bytes,
    s.seq,
    t.error_ns AS clock_error_ns
FROM share AS s
INNER JOIN track AS t USING (track)
INNER JOIN top AS p USING (kind)
LEFT JOIN host_info AS h ON t.host_uid = h.host_uid
WHERE s.bytes <> 0
ORDER BY t.device_type, p.total_bytes DESC, t.group_name, s.bytes DESC, t.attempt, t.rank, t.device;

COMMENT ON MACRO TABLE group_peak IS 'The instant of the highest sum over the ranks of each group, with each rank''s share.';
