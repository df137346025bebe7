-- Question: How high did each stream or component of a rank get, in blocks and in segments, and the process beyond them?
-- Parameters:
--   of_session: session id
--   of_group: stream or component; of component app too: what the process holds beyond the allocators; and the
--     components that a recording samples, under its own names (HCCL, RUNTIME, ...); they overlap with the others
--   of_rank: global rank; NULL, the default, for all
-- Columns:
--   attempt, rank, device, device_type, host_name: as in peak_by_group
--   group_name: stream or component
--   bytes_at_rank_peak (bytes): of its blocks alive at the rank's own peak; all but the sampled add up to it. Of
--     those: by the last sample before it, else the first; NULL where the device has no event
--   rank_peak_bytes, rank_peak_ns: the rank's own peak and its instant
--   peak_bytes (bytes): the group's own peak: its blocks', or the highest sample; of pinned_host of what was in use.
--     NULL for app where no sample has what the process holds, or what the allocators hold
--   peak_time_ns (ns, common clock): the first instant at which it stood so high
--   peak_time_utc: the same, readable
--   peak_seq: that event or sample
--   peak_reserved_bytes (bytes): the most it held from the device, in segments made since the recording began. Where
--     a recording of an NPU has totals and no segments: for components from the totals, for streams NULL. Of host
--     memory and of what is sampled its own peak; of sampled pinned_host the most it held from the host
--   peak_reserved_ns (ns, common clock): the first instant at which it did
--   is_sampled: true for app, for sampled pinned_host and for the components that a recording samples: in no sum
-- Scatter: hosts
CREATE OR REPLACE MACRO allocator_peak(of_session, of_group, of_rank := NULL) AS TABLE
-- A pair whose first is NULL is none, and would be the greatest of all: FILTER leaves it out.
WITH segment_change AS (
    SELECT
        e.attempt,
        e.rank,
        e.device,
        if(of_group = 'stream', e.stream::VARCHAR, e.component) AS group_name,
        e.seq,
        e.time_ns,
        CASE WHEN e.action IN ('segment_alloc', 'segment_map') THEN e.size_bytes ELSE -e.size_bytes END AS bytes
    FROM memory_event AS e
    WHERE e.session_id = of_session
        AND (of_rank IS NULL OR e.rank = of_rank)
        AND e.action IN ('segment_alloc', 'segment_map', 'segment_free', 'segment_unmap')
),
-- Devices of recordings that may have totals and no segments.
totalled AS (
    SELECT attempt, rank, device
    FROM device_info
    WHERE of_group = 'component'
        AND session_id = of_session
        AND (of_rank IS NULL OR rank = of_rank)
        AND split_part(device, ':', 1) = 'npu'
    EXCEPT
    SELECT attempt, rank, device FROM segment_change
),
segments AS (
    SELECT
        attempt,
        rank,
        device,
        group_name,
        max(held_bytes)::BIGINT AS bytes,
        arg_max(time_ns + offset_ns, (held_bytes, -seq)) AS time_ns
    FROM (
        SELECT
            c.*,
            coalesce(s.offset_ns, 0) AS offset_ns,
            sum(c.bytes) OVER (
                PARTITION BY c.attempt, c.rank, c.device, c.group_name ORDER BY c.seq ROWS UNBOUNDED PRECEDING
            ) AS held_bytes
        FROM (
            FROM segment_change
            UNION ALL
            -- An event's totals are its device's, so what it changed is its own component's.
            SELECT
                e.attempt,
                e.rank,
                e.device,
                e.component,
                e.seq,
                e.time_ns,
                e.reserved_bytes - lag(e.reserved_bytes, 1, 0) OVER (
                    PARTITION BY e.attempt, e.rank, e.device ORDER BY e.seq
                )
            FROM memory_event AS e
            INNER JOIN totalled AS t USING (attempt, rank, device)
            WHERE e.session_id = of_session
                AND (of_rank IS NULL OR e.rank = of_rank)
                AND e.reserved_bytes IS NOT NULL
        ) AS c
        LEFT JOIN rank_span AS s
            ON s.session_id = of_session AND c.attempt = s.attempt AND c.rank = s.rank
    )
    GROUP BY attempt, rank, device, group_name
),
process AS (
    SELECT
        p.attempt,
        p.rank,
        p.device,
        p.device_type,
        p.host_name,
        'app' AS group_name,
        coalesce(
            arg_max(a.app_bytes, a.seq) FILTER (WHERE a.seq <= p.peak_seq), arg_min(a.app_bytes, a.seq)
        ) AS bytes_at_rank_peak,
        p.peak_requested_bytes AS rank_peak_bytes,
        p.peak_time_ns AS rank_peak_ns,
        max(a.app_bytes) AS peak_bytes,
        arg_max(a.time_ns, (a.app_bytes, -a.seq)) FILTER (WHERE a.app_bytes IS NOT NULL) AS peak_time_ns,
        arg_max(a.seq, (a.app_bytes, -a.seq)) FILTER (WHERE a.app_bytes IS NOT NULL) AS peak_seq
    FROM peak_by_rank AS p
    INNER JOIN app_curve AS a USING (session_id, attempt, rank, device)
    WHERE of_group = 'component'
        AND p.session_id = of_session
        AND a.session_id = of_session
        AND p.is_rank_peak
        AND (of_rank IS NULL OR p.rank = of_rank)
    GROUP BY ALL
),
-- Beside an accelerator's peak, where the rank has one.
own AS (
    SELECT *
    FROM peak_by_rank
    WHERE session_id = of_session AND is_rank_peak AND (of_rank IS NULL OR rank = of_rank)
    QUALIFY row_number() OVER (
        PARTITION BY attempt, rank ORDER BY device_type = 'cpu', peak_requested_bytes DESC, device
    ) = 1
),
pinned AS (
    SELECT
        p.attempt,
        p.rank,
        c.device,
        c.device AS device_type,
        p.host_name,
        c.component AS group_name,
        coalesce(
            arg_max(c.active_bytes, c.seq) FILTER (WHERE c.seq <= p.peak_seq), arg_min(c.active_bytes, c.seq)
        ) AS bytes_at_rank_peak,
        p.peak_requested_bytes AS rank_peak_bytes,
        p.peak_time_ns AS rank_peak_ns,
        max(c.active_bytes) AS peak_bytes,
        arg_max(c.time_ns + coalesce(s.offset_ns, 0), (c.active_bytes, -c.seq)) FILTER (WHERE c.active_bytes IS NOT NULL)
            AS peak_time_ns,
        arg_max(c.seq, (c.active_bytes, -c.seq)) FILTER (WHERE c.active_bytes IS NOT NULL) AS peak_seq,
        max(c.reserved_bytes) AS peak_reserved_bytes,
        arg_max(c.time_ns + coalesce(s.offset_ns, 0), (c.reserved_bytes, -c.seq))
            FILTER (WHERE c.reserved_bytes IS NOT NULL) AS peak_reserved_ns
    FROM component_sample AS c
    INNER JOIN own AS p USING (session_id, attempt, rank)
    LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
    WHERE of_group = 'component' AND c.session_id = of_session AND c.component = 'pinned_host'
    GROUP BY ALL
),
-- Components that a recording samples: their rows have times, and no position in the log.
sampled AS (
    SELECT
        c.attempt,
        c.rank,
        c.device,
        split_part(c.device, ':', 1) AS device_type,
        any_value(coalesce(p.host_name, h.host_name)) AS host_name,
        c.component AS group_name,
        coalesce(
            arg_max(c.reserved_bytes, c.time_ns) FILTER (WHERE c.time_ns + coalesce(s.offset_ns, 0) <= p.peak_time_ns),
            arg_min(c.reserved_bytes, c.time_ns) FILTER (WHERE p.peak_time_ns IS NOT NULL)
        ) AS bytes_at_rank_peak,
        p.peak_requested_bytes AS rank_peak_bytes,
        p.peak_time_ns AS rank_peak_ns,
        max(c.reserved_bytes) AS peak_bytes,
        arg_max(c.time_ns + coalesce(s.offset_ns, 0), (c.reserved_bytes, -c.time_ns))
            FILTER (WHERE c.reserved_bytes IS NOT NULL) AS peak_time_ns
    FROM component_sample AS c
    LEFT JOIN peak_by_rank AS p
        ON p.session_id = of_session
        AND p.is_rank_peak
        AND c.attempt = p.attempt
        AND c.rank = p.rank
        AND c.device = p.device
    LEFT JOIN rank_span AS s ON s.session_id = of_session AND c.attempt = s.attempt AND c.rank = s.rank
    LEFT JOIN host_info AS h ON s.host_uid = h.host_uid
    WHERE of_group = 'component'
        AND c.session_id = of_session
        AND (of_rank IS NULL OR c.rank = of_rank)
        AND c.component <> 'pinned_host'
    GROUP BY ALL
    HAVING max(c.reserved_bytes) > 0
)
SELECT
    b.*,
    CASE WHEN b.device IN ('cpu', 'pinned') THEN b.peak_bytes ELSE s.bytes END AS peak_reserved_bytes,
    CASE WHEN b.device IN ('cpu', 'pinned') THEN b.peak_time_ns ELSE s.time_ns END AS peak_reserved_ns,
    false AS is_sampled
FROM peak_by_group(of_session, of_group, of_rank := of_rank) AS b
LEFT JOIN segments AS s
    ON b.attempt = s.attempt
    AND b.rank = s.rank
    AND b.device = s.device
    AND b.group_name IS NOT DISTINCT FROM s.group_name
UNION ALL BY NAME
SELECT
    *,
    utc_of(peak_time_ns) AS peak_time_utc,
    peak_bytes AS peak_reserved_bytes,
    peak_time_ns AS peak_reserved_ns,
    true AS is_sampled
FROM (FROM process UNION ALL BY NAME FROM sampled)
UNION ALL BY NAME
SELECT *, utc_of(peak_time_ns) AS peak_time_utc, true AS is_sampled FROM pinned
ORDER BY rank, device, bytes_at_rank_peak DESC, peak_bytes DESC, group_name;

COMMENT ON MACRO TABLE allocator_peak IS 'The peaks of each stream or component of a rank, and of the process beyond them.';
