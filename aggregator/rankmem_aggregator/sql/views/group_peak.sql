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
        b.first_ns + coalesce(s.offset_ns, 0) AS first_ns,
        b.last_ns + coalesce(s.offset_ns, 0) AS last_ns,
        -- Its bytes are gone when its process is; never before its last event, whatever the clocks say.
        CASE WHEN s.ended_ns IS NOT NULL
            THEN greatest(s.ended_ns, b.last_ns + coalesce(s.offset_ns, 0)) END AS closed_ns
    FROM (
        SELECT b.*, g.group_key, g.group_name
        FROM (
            SELECT session_id, attempt, rank, device, min(first_ns) AS first_ns, max(last_ns) AS last_ns
            FROM memory_bucket
            WHERE session_id = of_session
            GROUP BY ALL
        ) AS b
        LEFT JOIN rank_group(of_session, of_group) AS g USING (attempt, rank, device)
    ) AS b
    LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
),

-- Windows of the common clock are 2^coarse_shift ns: about as long as a bucket; and so long that, however much time
-- some buckets take, all together touch five times as many windows as there are buckets, at most. The windows of the
-- second level hold some eight events of a track.
grid AS MATERIALIZED (
    SELECT coarse_shift, greatest(coarse_shift - 3, 0) AS fine_shift, least(coarse_shift, 3) AS depth
    FROM (
        SELECT ceil(log2(greatest(
            1,
            sum(b.last_ns - b.first_ns) / count(*),
            any_value(t.whole_ns) / (4 * count(*) / any_value(t.num_tracks))
        )))::INTEGER AS coarse_shift
        FROM memory_bucket AS b
        CROSS JOIN (
            SELECT max(greatest(last_ns, coalesce(closed_ns, last_ns))) - min(first_ns) AS whole_ns, count(*) AS num_tracks
            FROM track
        ) AS t
        WHERE b.session_id = of_session
    )
),

-- First level: buckets, at most 64 records of a rank's log each. A closing is a piece of its own, with the last place
-- in the order.
coarse AS MATERIALIZED (
    SELECT
        p.*,
        lag(p.last_bytes, 1, 0) OVER (PARTITION BY p.track ORDER BY p.seq_last) AS entry_bytes,
        p.first_ns >> g.coarse_shift AS window_first,
        p.last_ns >> g.coarse_shift AS window_last
    FROM (
        SELECT
            t.track,
            t.kind,
            false AS is_closing,
            b.seq_first,
            b.seq_last,
            b.first_ns + t.offset_ns AS first_ns,
            b.last_ns + t.offset_ns AS last_ns,
            b.requested_peak_ns + t.offset_ns AS peak_ns,
            b.requested_peak_bytes AS peak_bytes,
            b.requested_last_bytes AS last_bytes
        FROM memory_bucket AS b
        INNER JOIN track AS t USING (attempt, rank, device)
        WHERE b.session_id = of_session
        UNION ALL
        SELECT track, kind, true, 9223372036854775807, 9223372036854775807, closed_ns, closed_ns, closed_ns, 0, 0
        FROM track
        WHERE closed_ns IS NOT NULL
    ) AS p
    CROSS JOIN grid AS g
),
coarse_touch AS (
    SELECT kind, track, seq_last, window_first AS window_number, peak_bytes, entry_bytes FROM coarse
    UNION ALL
    SELECT kind, track, seq_last, window_last, peak_bytes, entry_bytes FROM coarse WHERE window_last > window_first
    UNION ALL
    SELECT kind, track, seq_last, unnest(range(window_first + 1, window_last)), peak_bytes, entry_bytes
    FROM coarse
    WHERE window_last > window_first + 1
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
                any_value(kind) AS kind,
                window_number,
                greatest(max(peak_bytes), max(entry_bytes)) - arg_min(entry_bytes, seq_last) AS climb_bytes,
                0 AS step_bytes
            FROM coarse_touch
            GROUP BY track, window_number
            UNION ALL
            SELECT kind, window_last + 1, NULL, last_bytes - entry_bytes FROM coarse
        )
        GROUP BY kind, window_number
    )
),

-- A sum that was really reached, to prune by: the one amid the peaks of the pieces in the window with the best bound.
probe AS MATERIALIZED (
    SELECT b.kind, quantile_disc(c.peak_ns, 0.5) AS time_ns
    FROM (
        SELECT kind, arg_max(window_number, base_bytes + climb_bytes) AS window_number
        FROM coarse_bound
        WHERE climb_bytes IS NOT NULL
        GROUP BY kind
    ) AS b
    INNER JOIN coarse AS c
        ON c.kind = b.kind AND c.window_first <= b.window_number AND c.window_last >= b.window_number
    GROUP BY b.kind
),
-- The piece that each track was in by then, or had been in last. Here and below a side of a join with memory_event is a
-- list: DuckDB takes one row to be few, and where it did not know, the events went into the hash table.
probe_piece AS MATERIALIZED (
    SELECT list({
        kind: kind,
        time_ns: time_ns,
        attempt: attempt,
        rank: rank,
        device: device,
        track: track,
        from_ns: first_ns - offset_ns,
        until_ns: time_ns - offset_ns,
        is_open: last_ns > time_ns,
        bytes: CASE WHEN last_ns > time_ns THEN entry_bytes ELSE last_bytes END
    }) AS pieces
    FROM (
        SELECT
            p.kind,
            p.time_ns,
            t.attempt,
            t.rank,
            t.device,
            t.track,
            any_value(t.offset_ns) AS offset_ns,
            max(c.first_ns) AS first_ns,
            arg_max(c.last_ns, c.seq_last) AS last_ns,
            arg_max(c.last_bytes, c.seq_last) AS last_bytes,
            arg_max(c.entry_bytes, c.seq_last) AS entry_bytes
        FROM probe AS p
        INNER JOIN coarse AS c ON c.kind = p.kind AND c.first_ns <= p.time_ns
        INNER JOIN track AS t USING (track)
        GROUP BY p.kind, p.time_ns, t.attempt, t.rank, t.device, t.track
    )
),
reached AS MATERIALIZED (
    SELECT kind, sum(bytes) AS bytes
    FROM (
        SELECT kind, track, arg_max(bytes, seq) AS bytes
        FROM (
            SELECT kind, track, bytes, -1 AS seq
            FROM (SELECT unnest(pieces, recursive := true) FROM probe_piece)
            UNION ALL
            SELECT p.kind, p.track, e.requested_bytes, e.seq
            FROM memory_event AS e
            INNER JOIN (SELECT unnest(pieces, recursive := true) FROM probe_piece) AS p
                ON p.attempt = e.attempt
                AND p.rank = e.rank
                AND p.device = e.device
                AND p.from_ns <= e.time_ns
                AND p.until_ns >= e.time_ns
            WHERE e.session_id = of_session AND p.is_open AND e.requested_bytes IS NOT NULL
        )
        GROUP BY kind, track
    )
    GROUP BY kind
),
-- num_hot: windows up to this one in which the sum may have stood as high.
coarse_hot AS MATERIALIZED (
    SELECT
        kind,
        window_number,
        is_hot,
        -- A count of rows that are filtered takes seven times as long here.
        sum(is_hot::INTEGER) OVER (PARTITION BY kind ORDER BY window_number)::BIGINT AS num_hot
    FROM (
        SELECT
            b.kind,
            b.window_number,
            b.climb_bytes IS NOT NULL AND b.base_bytes + b.climb_bytes >= r.bytes AS is_hot
        FROM coarse_bound AS b
        INNER JOIN reached AS r USING (kind)
    )
),
coarse_marked AS MATERIALIZED (
    SELECT c.*, f.num_hot AS gap, NOT c.is_closing AND (f.is_hot OR l.num_hot > f.num_hot) AS is_hot
    FROM coarse AS c
    INNER JOIN coarse_hot AS f ON f.kind = c.kind AND f.window_number = c.window_first
    INNER JOIN coarse_hot AS l ON l.kind = c.kind AND l.window_number = c.window_last
),

-- Second level: the same over smaller windows, made from the events of the pieces in hot windows. An event finds its
-- piece by part, which is seq // 64; a bucket lies in one part.
hot_piece AS MATERIALIZED (
    SELECT list({
        attempt: t.attempt,
        rank: t.rank,
        device: t.device,
        offset_ns: t.offset_ns,
        track: c.track,
        seq_first: c.seq_first,
        seq_last: c.seq_last,
        first_ns: c.first_ns,
        last_ns: c.last_ns
    }) AS pieces
    FROM coarse_marked AS c
    INNER JOIN track AS t USING (track)
    WHERE c.is_hot
),
hot_event AS MATERIALIZED (
    SELECT h.track, e.seq, e.time_ns + h.offset_ns AS time_ns, e.requested_bytes
    FROM memory_event AS e
    INNER JOIN (
        SELECT *, unnest(range(seq_first >> 6, (seq_last >> 6) + 1)) AS part
        FROM (SELECT unnest(pieces, recursive := true) FROM hot_piece)
    ) AS h
        ON h.rank = e.rank
        AND h.attempt = e.attempt
        AND h.part = e.seq >> 6
        -- Nearly always so, and in this form looked at in the rows that are found, not hashed for all: a quarter
        -- of the join's time.
        AND CASE WHEN h.device = e.device AND h.seq_first <= e.seq AND h.seq_last >= e.seq THEN true ELSE false END
        -- Follows from the rest; by it DuckDB passes over what is stored of other times.
        AND h.first_ns - h.offset_ns <= e.time_ns
        AND h.last_ns - h.offset_ns >= e.time_ns
    WHERE e.session_id = of_session AND e.requested_bytes IS NOT NULL
),
-- What a track did from one hot window to the next is a single piece, so that every track is covered from its first
-- event to its last; such a piece touches no hot window. closed_ns is that of a closing.
fine AS MATERIALIZED (
    SELECT *, lag(last_bytes, 1, 0) OVER (PARTITION BY track ORDER BY seq_last) AS entry_bytes
    FROM (
        SELECT
            e.track,
            t.kind,
            t.worker,
            e.window_number AS window_first,
            e.window_number AS window_last,
            e.seq_last,
            NULL::BIGINT AS closed_ns,
            e.peak_bytes,
            e.last_bytes
        FROM (
            SELECT
                track,
                time_ns >> (SELECT fine_shift FROM grid) AS window_number,
                max(seq) AS seq_last,
                max(requested_bytes) AS peak_bytes,
                arg_max(requested_bytes, seq) AS last_bytes
            FROM hot_event
            GROUP BY track, window_number
        ) AS e
        INNER JOIN track AS t USING (track)
        UNION ALL
        SELECT
            c.track,
            t.kind,
            t.worker,
            c.first_ns >> g.fine_shift,
            c.last_ns >> g.fine_shift,
            c.seq_last,
            CASE WHEN c.is_closing THEN c.last_ns END,
            c.peak_bytes,
            c.last_bytes
        FROM (
            SELECT
                track,
                is_closing,
                min(first_ns) AS first_ns,
                max(last_ns) AS last_ns,
                max(seq_last) AS seq_last,
                max(peak_bytes) AS peak_bytes,
                arg_max(last_bytes, seq_last) AS last_bytes
            FROM coarse_marked
            WHERE NOT is_hot
            GROUP BY track, gap, is_closing
        ) AS c
        INNER JOIN track AS t USING (track)
        CROSS JOIN grid AS g
    )
),
-- In a hot window a track has one piece, and its closing perhaps, which adds no climb. step_bytes: what the window adds.
fine_bound AS MATERIALIZED (
    SELECT b.kind, b.window_number, b.climb_bytes, b.step_bytes, b.base_bytes
    FROM (
        SELECT
            kind,
            window_number,
            -- Made here: where the join's condition took it from grid, DuckDB paired all windows of a kind.
            window_number >> (SELECT depth FROM grid) AS coarse_number,
            climb_bytes,
            step_bytes,
            sum(passed_bytes) OVER (PARTITION BY kind ORDER BY window_number) AS base_bytes
        FROM (
            SELECT
                kind,
                window_number,
                sum(climb_bytes) AS climb_bytes,
                sum(step_bytes) AS step_bytes,
                sum(passed_bytes) AS passed_bytes
            FROM (
                SELECT
                    kind,
                    window_first AS window_number,
                    greatest(peak_bytes, entry_bytes) - entry_bytes AS climb_bytes,
                    last_bytes - entry_bytes AS step_bytes,
                    0 AS passed_bytes
                FROM fine
                UNION ALL
                SELECT kind, window_last + 1, NULL, NULL, last_bytes - entry_bytes FROM fine
            )
            GROUP BY kind, window_number
        )
    ) AS b
    INNER JOIN coarse_hot AS h ON h.kind = b.kind AND h.window_number = b.coarse_number
    WHERE h.is_hot
),
-- The windows left, numbered; before_bytes: what those of lower number add.
fine_hot AS MATERIALIZED (
    SELECT
        b.kind,
        b.window_number,
        b.base_bytes,
        row_number() OVER w AS place,
        sum(b.step_bytes) OVER w - b.step_bytes AS before_bytes
    FROM fine_bound AS b
    INNER JOIN (
        SELECT kind, max(bytes) AS bytes
        FROM (
            FROM reached
            UNION ALL
            SELECT kind, base_bytes FROM fine_bound
        )
        GROUP BY kind
    ) AS r USING (kind)
    WHERE b.climb_bytes IS NOT NULL AND b.base_bytes + b.climb_bytes >= r.bytes
    WINDOW w AS (ORDER BY b.kind, b.window_number ROWS UNBOUNDED PRECEDING)
),
-- Their pieces.
left_over AS MATERIALIZED (
    SELECT list({
        kind: f.kind,
        window_number: f.window_first,
        track: f.track,
        worker: f.worker,
        closed_ns: f.closed_ns,
        entry_bytes: f.entry_bytes,
        place: h.place,
        before_bytes: h.base_bytes - h.before_bytes
    }) AS pieces
    FROM fine AS f
    INNER JOIN fine_hot AS h ON h.kind = f.kind AND h.window_number = f.window_first
),

-- Last: the events of the windows left, in order of time.
change AS MATERIALIZED (
    SELECT
        p.kind,
        p.window_number,
        p.track,
        p.worker,
        e.seq,
        e.time_ns,
        e.requested_bytes,
        p.place,
        p.before_bytes,
        e.requested_bytes - CASE
            WHEN lag(p.window_number) OVER w = p.window_number THEN lag(e.requested_bytes) OVER w
            ELSE p.entry_bytes
        END AS step_bytes
    FROM (
        SELECT e.*, e.time_ns >> g.fine_shift AS window_number
        FROM hot_event AS e
        CROSS JOIN grid AS g
    ) AS e
    INNER JOIN (SELECT unnest(pieces, recursive := true) FROM left_over) AS p USING (track, window_number)
    WHERE p.closed_ns IS NULL
    WINDOW w AS (PARTITION BY e.track ORDER BY e.seq)
    UNION ALL
    SELECT
        kind, window_number, track, worker, 9223372036854775807, closed_ns, 0, place, before_bytes, -entry_bytes
    FROM (SELECT unnest(pieces, recursive := true) FROM left_over)
    WHERE closed_ns IS NOT NULL
),
-- One running sum through all windows, one after the other: three times as fast here as a sum for each.
sweep AS MATERIALIZED (
    SELECT
        *,
        before_bytes + sum(step_bytes) OVER (ORDER BY place_ns, worker, seq ROWS UNBOUNDED PRECEDING) AS total_bytes
    FROM (
        SELECT c.*, (c.place << g.fine_shift) + c.time_ns - (c.window_number << g.fine_shift) AS place_ns
        FROM change AS c
        CROSS JOIN grid AS g
    )
),
top AS MATERIALIZED (
    SELECT DISTINCT ON (kind) kind, window_number, total_bytes, time_ns, worker, seq
    FROM sweep
    ORDER BY kind, total_bytes DESC, time_ns, worker, seq
),

-- Each track's share: its last event by then in that window, else where its last piece before left it.
share AS (
    SELECT track, arg_max(bytes, seq) AS bytes, max(seq) AS seq
    FROM (
        SELECT c.track, c.requested_bytes AS bytes, c.seq
        FROM top AS t
        INNER JOIN change AS c USING (kind, window_number)
        WHERE (c.time_ns, c.worker, c.seq) <= (t.time_ns, t.worker, t.seq)
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
CROSS JOIN unstreamed
WHERE s.bytes <> 0
ORDER BY t.device_type, p.total_bytes DESC, t.group_name, s.bytes DESC, t.attempt, t.rank, t.device;

COMMENT ON MACRO TABLE group_peak IS 'The instant of the highest sum over the ranks of each group, with each rank''s share.';
