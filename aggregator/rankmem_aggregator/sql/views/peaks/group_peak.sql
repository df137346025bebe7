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
--   attempt, rank, device: a device with its share; never of a rank without a clock (rank_span) beside others
--   host_name: its host
--   requested_bytes (bytes): its share
--   seq: the rank's event that gave it; live_at_seq has what was alive
--   clock_error_ns (ns): bound of that rank's clock offset
-- Scatter: time
CREATE OR REPLACE MACRO group_peak(of_session, of_group) AS TABLE
WITH
-- A track is a device of a rank of an attempt. Tracks are numbered so that, among events of one instant, the
-- order by (track, seq) is the one by (attempt, rank, seq); kinds number the device types, each
-- group separately.
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
        -- Its bytes are gone when its process is; never before its last event, whatever the clocks show.
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
        WHERE g.is_summed
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
            b.events = 0 AS is_quiet,
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
        SELECT track, kind, true, false, 9223372036854775807, 9223372036854775807, closed_ns, closed_ns, closed_ns, 0, 0
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

-- A sum that was really reached, to prune by: the highest in the window that most peaks lie in, of the pieces in a
-- window with the best bound, or nearly so; of these the one nearest to the best of all kinds. Groups of ranks that
-- keep step are then read at one place of the file.
probe AS MATERIALIZED (
    SELECT b.kind, b.window_number, b.base_bytes
    FROM coarse_bound AS b
    INNER JOIN (
        SELECT n.kind, quantile_disc(c.peak_ns, 0.5) >> any_value(g.coarse_shift) AS window_number
        FROM (
            SELECT
                b.kind,
                arg_min(b.window_number, (abs(b.window_number - t.window_number), b.window_number)) AS window_number
            FROM coarse_bound AS b
            INNER JOIN (
                SELECT kind, max(base_bytes + climb_bytes) AS bytes FROM coarse_bound GROUP BY kind
            ) AS m ON m.kind = b.kind AND b.base_bytes + b.climb_bytes >= m.bytes - m.bytes // 1024
            CROSS JOIN (
                SELECT arg_max(window_number, base_bytes + climb_bytes) AS window_number
                FROM coarse_bound
                WHERE climb_bytes IS NOT NULL
            ) AS t
            GROUP BY b.kind
        ) AS n
        INNER JOIN coarse AS c
            ON c.kind = n.kind AND c.window_first <= n.window_number AND c.window_last >= n.window_number
        CROSS JOIN grid AS g
        GROUP BY n.kind
    ) AS p USING (kind, window_number)
),
-- Here and below a side of a join with memory_event is a list: DuckDB takes one row to be few, and where it did not
-- know, the events went into the hash table.
probe_piece AS MATERIALIZED (
    SELECT list({
        kind: p.kind,
        window_number: p.window_number,
        base_bytes: p.base_bytes,
        attempt: t.attempt,
        rank: t.rank,
        device: t.device,
        track: t.track,
        worker: t.worker,
        offset_ns: t.offset_ns,
        seq_first: c.seq_first,
        seq_last: c.seq_last,
        from_ns: c.first_ns - t.offset_ns,
        until_ns: c.last_ns - t.offset_ns,
        is_closing: c.is_closing,
        entry_bytes: c.entry_bytes
    }) AS pieces
    FROM probe AS p
    INNER JOIN (
        FROM coarse
        -- Follows from the join, and leaves few rows to it: a twentieth of the whole search's time.
        WHERE window_last >= (SELECT min(window_number) FROM probe)
            AND window_first <= (SELECT max(window_number) FROM probe)
    ) AS c ON c.kind = p.kind AND c.window_first <= p.window_number AND c.window_last >= p.window_number
    INNER JOIN track AS t USING (track)
),
reached AS MATERIALIZED (
    SELECT kind, max(bytes) AS bytes
    FROM (
        SELECT kind, window_number, NULL AS time_ns, 0 AS bytes FROM probe
        UNION ALL
        SELECT
            kind,
            window_number,
            time_ns,
            base_bytes + sum(step_bytes) OVER (
                PARTITION BY kind ORDER BY time_ns, worker, seq ROWS UNBOUNDED PRECEDING
            ) AS bytes
        FROM (
            SELECT
                p.kind,
                p.window_number,
                p.base_bytes,
                p.worker,
                e.seq,
                e.time_ns + p.offset_ns AS time_ns,
                e.requested_bytes
                - lag(e.requested_bytes, 1, p.entry_bytes) OVER (PARTITION BY p.track ORDER BY e.seq) AS step_bytes
            FROM memory_event AS e
            INNER JOIN (SELECT unnest(pieces, recursive := true) FROM probe_piece) AS p
                ON p.attempt = e.attempt
                AND p.rank = e.rank
                AND p.device = e.device
                AND p.seq_first <= e.seq
                AND p.seq_last >= e.seq
                AND p.from_ns <= e.time_ns
                AND p.until_ns >= e.time_ns
            WHERE e.session_id = of_session AND e.requested_bytes IS NOT NULL AND NOT p.is_closing
            UNION ALL
            SELECT kind, window_number, base_bytes, worker, seq_last, until_ns + offset_ns, -entry_bytes
            FROM (SELECT unnest(pieces, recursive := true) FROM probe_piece)
            WHERE is_closing
        )
    )
    WHERE time_ns IS NULL OR time_ns >> (SELECT coarse_shift FROM grid) = window_number
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
-- By itself: where it was one statement with the next, DuckDB paired all windows of a kind.
coarse_begun AS MATERIALIZED (
    SELECT c.*, f.is_hot, f.num_hot
    FROM coarse AS c
    INNER JOIN coarse_hot AS f ON f.kind = c.kind AND f.window_number = c.window_first
),
coarse_marked AS MATERIALIZED (
    SELECT
        c.track,
        c.kind,
        c.is_closing,
        c.is_quiet,
        c.seq_first,
        c.seq_last,
        c.first_ns,
        c.last_ns,
        greatest(c.peak_bytes, c.entry_bytes) AS peak_bytes,
        c.last_bytes,
        c.entry_bytes,
        c.num_hot AS gap,
        NOT c.is_closing AND (c.is_hot OR l.num_hot > c.num_hot) AS is_warm
    FROM coarse_begun AS c
    INNER JOIN coarse_hot AS l ON l.kind = c.kind AND l.window_number = c.window_last
),

-- Between the levels: the same bound again over the pieces in hot windows, at every instant instead of in windows. A
-- piece raises it when it begins and lowers it when it is over. Of what happens at one instant the order is
-- free: the last of it leaves the bound, and lies within every piece that is not over by then. Half of these
-- pieces are left.
bound_step AS (
    SELECT kind, track, seq_last, first_ns AS time_ns, peak_bytes - entry_bytes AS step_bytes
    FROM coarse_marked
    WHERE is_warm
    UNION ALL
    SELECT kind, track, seq_last, last_ns + 1, last_bytes - peak_bytes
    FROM coarse_marked
    WHERE is_warm
    UNION ALL
    -- What happened from one hot window to the next, of all tracks together. An end amid one comes late here, which
    -- leaves the bound higher than need be.
    SELECT kind, NULL, NULL, max(last_ns) + 1, sum(last_bytes - entry_bytes)
    FROM coarse_marked
    WHERE NOT is_warm
    GROUP BY kind, gap
),
hot_piece AS MATERIALIZED (
    SELECT track, seq_last
    FROM (
        SELECT
            b.track,
            b.seq_last,
            sum((b.bound_bytes >= r.bytes)::INTEGER) OVER (
                PARTITION BY b.kind ORDER BY b.time_ns, b.track, b.seq_last
                ROWS UNBOUNDED PRECEDING
            ) - (b.bound_bytes >= r.bytes)::INTEGER AS num_hot
        FROM (
            SELECT
                *,
                sum(step_bytes) OVER (
                    PARTITION BY kind ORDER BY time_ns, track, seq_last ROWS UNBOUNDED PRECEDING
                ) AS bound_bytes
            FROM bound_step
        ) AS b
        INNER JOIN reached AS r USING (kind)
    )
    WHERE track IS NOT NULL
    GROUP BY track, seq_last
    HAVING max(num_hot) > min(num_hot)
),
hot_list AS MATERIALIZED (
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
    SEMI JOIN hot_piece AS h ON h.track = c.track AND h.seq_last = c.seq_last
    INNER JOIN track AS t USING (track)
    WHERE c.is_warm
),
-- One event in the place of all those of a piece that is left out: no sum while it lasts comes near. The end of a process
-- is one, too, with the last place in the order; and a piece without events, such as all that was there before the first:
-- there is nothing else to read of it.
stand_in AS MATERIALIZED (
    SELECT c.track, c.seq_last AS seq, c.last_ns AS time_ns, c.last_bytes AS requested_bytes
    FROM coarse_marked AS c
    ANTI JOIN hot_piece AS h ON h.track = c.track AND h.seq_last = c.seq_last AND NOT c.is_quiet
    WHERE c.is_warm OR c.is_closing
),

-- Second level: windows again, smaller ones, made from the events of the pieces left. An event finds its piece by part,
-- which is seq // 64; a bucket lies in one part.
hot_event AS NOT MATERIALIZED (
    SELECT h.track, e.seq, e.time_ns + h.offset_ns AS time_ns, e.requested_bytes
    FROM memory_event AS e
    INNER JOIN (
        SELECT *, unnest(range(seq_first >> 6, (seq_last >> 6) + 1)) AS part
        FROM (SELECT unnest(pieces, recursive := true) FROM hot_list)
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
read_event AS MATERIALIZED (
    FROM hot_event
    UNION ALL
    FROM stand_in
    UNION ALL
    SELECT t.track, h.seq, h.time_ns + t.offset_ns, h.requested_bytes
    FROM held_before AS h
    INNER JOIN track AS t USING (attempt, rank, device)
    WHERE h.session_id = of_session
),
-- What a track did from one hot window to the next is a single piece, so that every track is covered from its first
-- event to its last; such a piece touches no hot window.
fine AS MATERIALIZED (
    SELECT *, lag(last_bytes, 1, 0) OVER (PARTITION BY track ORDER BY seq_last) AS entry_bytes
    FROM (
        SELECT e.track, t.kind, t.worker, true AS is_read, e.window_number, e.seq_last, e.peak_bytes, e.last_bytes
        FROM (
            SELECT
                track,
                time_ns >> (SELECT fine_shift FROM grid) AS window_number,
                max(seq) AS seq_last,
                max(requested_bytes) AS peak_bytes,
                arg_max(requested_bytes, seq) AS last_bytes
            FROM read_event
            GROUP BY track, window_number
        ) AS e
        INNER JOIN track AS t USING (track)
        UNION ALL
        SELECT c.track, t.kind, t.worker, false, c.last_ns >> g.fine_shift, c.seq_last, NULL, c.last_bytes
        FROM (
            SELECT
                track,
                max(last_ns) AS last_ns,
                max(seq_last) AS seq_last,
                arg_max(last_bytes, seq_last) AS last_bytes
            FROM coarse_marked
            WHERE NOT is_warm AND NOT is_closing
            GROUP BY track, gap
        ) AS c
        INNER JOIN track AS t USING (track)
        CROSS JOIN grid AS g
    )
),
-- In a hot window a track has one piece. step_bytes: what the window adds.
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
                    window_number,
                    greatest(peak_bytes, entry_bytes) - entry_bytes AS climb_bytes,
                    last_bytes - entry_bytes AS step_bytes,
                    0 AS passed_bytes
                FROM fine
                WHERE is_read
                UNION ALL
                SELECT kind, window_number + 1, NULL, NULL, last_bytes - entry_bytes FROM fine
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
        window_number: f.window_number,
        track: f.track,
        worker: f.worker,
        entry_bytes: f.entry_bytes,
        place: h.place,
        before_bytes: h.base_bytes - h.before_bytes
    }) AS pieces
    FROM fine AS f
    INNER JOIN fine_hot AS h USING (kind, window_number)
    WHERE f.is_read
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
        FROM read_event AS e
        CROSS JOIN grid AS g
    ) AS e
    INNER JOIN (SELECT unnest(pieces, recursive := true) FROM left_over) AS p USING (track, window_number)
    WINDOW w AS (PARTITION BY e.track ORDER BY e.seq)
),
-- One running sum through all windows, one after the other: three times as fast here as a sum for each.
sweep AS MATERIALIZED (
    SELECT
        kind,
        window_number,
        worker,
        seq,
        time_ns,
        before_bytes + sum(step_bytes) OVER (ORDER BY place_ns, worker, seq ROWS UNBOUNDED PRECEDING) AS total_bytes
    FROM (
        SELECT c.*, (c.place << g.fine_shift) + c.time_ns - (c.window_number << g.fine_shift) AS place_ns
        FROM change AS c
        CROSS JOIN grid AS g
    )
),
-- The highest first by a sum alone: a sort by all of it makes a key for each event.
top AS MATERIALIZED (
    SELECT DISTINCT ON (kind) kind, window_number, total_bytes, time_ns, worker, seq
    FROM sweep
    SEMI JOIN (SELECT kind, max(total_bytes) AS total_bytes FROM sweep GROUP BY kind) AS t USING (kind, total_bytes)
    ORDER BY kind, time_ns, worker, seq
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
        INNER JOIN fine AS f ON f.kind = t.kind AND f.window_number < t.window_number
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
