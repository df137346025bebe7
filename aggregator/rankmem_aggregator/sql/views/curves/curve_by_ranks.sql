-- Question: How did the memory of ranks together go up and down over time, on one clock? Exact.
-- Parameters:
--   of_session: session id
--   of_group: rank, host, device, dp, tp, pp, cp, ep, or job for all ranks together
--   of_device_type: cpu, cuda, ...: the sums are over the devices of one type
--   of_figure: requested, the default; or allocated, active or reserved, the allocator's own; on cpu all are the requested
--   of_ranks: list of global ranks; NULL, the default, for all
--   from_ns (ns, common clock): the beginning; NULL, the default, for the first event
--   until_ns (ns, common clock): the end; NULL, the default, for the last event
--   by_second: true: from memory_bucket, every rank at its highest of each second. Quick, but the ranks of a group do
--     not stand highest at the same instant: its sum may lie above what it reached
-- Columns:
--   group_name: the group
--   place: position in its course, from 1
--   time_ns (ns, common clock): of the event; of place 1 the beginning, where it held something already. The bytes of
--     a process are gone when it ends
--   bytes (bytes): of the group's ranks together after it
-- Scatter: none
CREATE OR REPLACE MACRO curve_by_ranks(
    of_session,
    of_group,
    of_device_type,
    of_figure := 'requested',
    of_ranks := NULL,
    from_ns := NULL,
    until_ns := NULL,
    by_second := false
) AS TABLE
WITH member AS (
    SELECT
        g.attempt,
        g.rank,
        g.device,
        CASE
            WHEN of_group = 'rank' THEN 'rank ' || g.rank
            WHEN of_group = 'job' THEN 'job'
            -- Hosts may share a name, in containers above all.
            WHEN count(DISTINCT g.group_key) OVER (PARTITION BY g.group_name) > 1
                THEN concat_ws(' ', g.group_name, g.group_key)
            ELSE coalesce(g.group_name, 'none')
        END AS group_name
    FROM rank_group(of_session, of_group) AS g
    WHERE g.is_summed
        AND split_part(g.device, ':', 1) = of_device_type
        AND (of_ranks IS NULL OR list_contains(of_ranks, g.rank))
),
-- start_seq, start_ns: where reading begins: the last second over before from_ns, for what was held then.
track AS MATERIALIZED (
    SELECT
        m.attempt,
        m.rank,
        m.device,
        any_value(m.group_name) AS group_name,
        coalesce(any_value(s.offset_ns), 0) AS offset_ns,
        CASE WHEN any_value(s.ended_ns) IS NOT NULL
            THEN greatest(any_value(s.ended_ns), max(b.last_ns) + coalesce(any_value(s.offset_ns), 0)) END AS closed_ns,
        coalesce(
            max(b.seq_first) FILTER (WHERE b.last_ns + coalesce(s.offset_ns, 0) < from_ns), min(b.seq_first)
        ) AS start_seq,
        coalesce(
            max(b.first_ns) FILTER (WHERE b.last_ns + coalesce(s.offset_ns, 0) < from_ns), min(b.first_ns)
        ) AS start_ns
    FROM member AS m
    INNER JOIN memory_bucket AS b ON b.attempt = m.attempt AND b.rank = m.rank AND b.device = m.device
    LEFT JOIN rank_span AS s ON s.session_id = of_session AND s.attempt = m.attempt AND s.rank = m.rank
    WHERE b.session_id = of_session
    GROUP BY m.attempt, m.rank, m.device
),
figure AS (
    SELECT
        attempt,
        rank,
        device,
        seq,
        time_ns,
        CASE
            WHEN of_figure = 'requested' OR of_device_type = 'cpu' THEN requested_bytes
            WHEN of_figure = 'allocated' THEN allocated_bytes
            WHEN of_figure = 'active' THEN active_bytes
            WHEN of_figure = 'reserved' THEN reserved_bytes
        END AS bytes
    FROM (
        SELECT attempt, rank, device, seq, time_ns, requested_bytes, allocated_bytes, active_bytes, reserved_bytes
        FROM memory_event
        WHERE session_id = of_session
        UNION ALL
        SELECT attempt, rank, device, seq, time_ns, requested_bytes, NULL, NULL, NULL
        FROM held_before
        WHERE session_id = of_session
    )
    WHERE NOT by_second
        AND time_ns >= (SELECT min(start_ns) FROM track)
        -- What ends in the range has no event behind it: what a process held at its end is read, too.
        AND (until_ns IS NULL OR time_ns <= (SELECT max(until_ns - offset_ns) FROM track))
    UNION ALL
    SELECT
        attempt,
        rank,
        device,
        seq_last,
        requested_peak_ns,
        CASE
            WHEN of_figure = 'requested' OR of_device_type = 'cpu' THEN requested_peak_bytes
            WHEN of_figure = 'allocated' THEN allocated_peak_bytes
            WHEN of_figure = 'active' THEN active_peak_bytes
            WHEN of_figure = 'reserved' THEN reserved_peak_bytes
        END
    FROM (
        SELECT
            attempt,
            rank,
            device,
            max(seq_last) AS seq_last,
            arg_max(requested_peak_ns, (requested_peak_bytes, -seq_first)) AS requested_peak_ns,
            max(requested_peak_bytes) AS requested_peak_bytes,
            max(allocated_peak_bytes) AS allocated_peak_bytes,
            max(active_peak_bytes) AS active_peak_bytes,
            max(reserved_peak_bytes) AS reserved_peak_bytes
        FROM memory_bucket
        WHERE by_second AND session_id = of_session
        GROUP BY attempt, rank, device, bucket_ns
    )
),
known AS (
    SELECT t.group_name, t.attempt, t.rank, t.device, f.seq, f.time_ns + t.offset_ns AS time_ns, f.bytes, t.closed_ns
    FROM figure AS f
    INNER JOIN track AS t USING (attempt, rank, device)
    WHERE f.bytes IS NOT NULL
        AND f.seq >= t.start_seq
        AND (until_ns IS NULL OR f.time_ns + t.offset_ns <= until_ns)
),
change AS (
    SELECT
        group_name,
        attempt,
        rank,
        device,
        seq,
        time_ns,
        bytes - lag(bytes, 1, 0) OVER (PARTITION BY attempt, rank, device ORDER BY seq) AS change_bytes
    FROM known
    UNION ALL
    -- Last among what happens at that instant, as in group_peak.
    SELECT any_value(group_name), attempt, rank, device, 9223372036854775807, any_value(closed_ns), -arg_max(bytes, seq)
    FROM known
    WHERE closed_ns IS NOT NULL
    GROUP BY attempt, rank, device
),
course AS (
    SELECT
        group_name,
        time_ns,
        row_number() OVER life AS place,
        (sum(change_bytes) OVER life)::BIGINT AS bytes
    FROM change
    WINDOW life AS (
        PARTITION BY group_name ORDER BY time_ns, attempt, rank, seq, device ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    )
)
SELECT group_name, row_number() OVER (PARTITION BY group_name ORDER BY place) AS place, time_ns, bytes
FROM (
    SELECT group_name, max(place) AS place, from_ns AS time_ns, arg_max(bytes, place) AS bytes
    FROM course
    WHERE time_ns < from_ns
    GROUP BY group_name
    UNION ALL
    SELECT group_name, place, time_ns, bytes
    FROM course
    WHERE (from_ns IS NULL OR time_ns >= from_ns) AND (until_ns IS NULL OR time_ns <= until_ns)
)
CROSS JOIN unstreamed
ORDER BY group_name, place;

COMMENT ON MACRO TABLE curve_by_ranks IS 'Bytes of ranks together, by rank, host or parallel coordinate or of the whole job, after every event.';
