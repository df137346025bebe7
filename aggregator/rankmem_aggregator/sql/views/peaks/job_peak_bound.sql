-- Question: How sure is the job's peak: how far below the sum of the ranks' peaks is it, and could the clocks change it?
-- Parameters:
--   of_session: session id
--   of_shares: rows of job_peak where they are known, so that it is not asked again, as a list of {device_type,
--     job_peak_bytes, job_peak_ns, attempt, rank, device, requested_bytes, seq, clock_error_ns} or the text of one;
--     NULL, the default, asks
-- Columns:
--   device_type: the peak is over the devices of one type
--   job_peak_bytes (bytes): requested bytes of all ranks together at the instant
--   job_peak_ns (ns, common clock): the instant
--   job_peak_utc: the same, readable
--   num_ranks: ranks that held something then
--   sum_of_peaks_bytes (bytes): every rank's own peak added up, of those in the sum
--   gap_bytes (bytes): by how much that sum overstates the job's peak
--   clock_error_ns (ns): by how much the clock of another host may be off against that of the rank whose event made
--     the peak, the largest; 0 on one host; NULL where an offset was never measured
--   lowest_bytes (bytes): the sum at that instant if, within the error, each other host's ranks stood at their lowest
--   highest_bytes (bytes): the same at their highest, NULL where events are missing: the true sum may have been higher
--     by any number; both NULL with the error
--   order_is_certain: true if no rank of another host has an event within the error of the instant, and no event of
--     a rank is missing
--   is_exact: true if no event of a rank is missing, and no rank: the sum is then wrong by the clocks alone; NULL where
--     it is not known, as in peak_bound
--   at_least_bytes (bytes): the true peak is not below it, whatever is missing: what the ranks held then of which
--     nothing was missing by then, or the highest that one rank held for certain; NULL where it cannot be derived
-- Scatter: time
CREATE OR REPLACE MACRO job_peak_bound(of_session, of_shares := NULL) AS TABLE
WITH share AS MATERIALIZED (
    SELECT j.*, s.host_uid, j.job_peak_ns - coalesce(s.offset_ns, 0) AS host_ns
    FROM (
        SELECT unnest(of_shares::STRUCT(
            device_type VARCHAR, job_peak_bytes BIGINT, job_peak_ns BIGINT, attempt INTEGER, rank INTEGER,
            device VARCHAR, requested_bytes BIGINT, seq BIGINT, clock_error_ns BIGINT
        )[], recursive := true)
        UNION ALL BY NAME
        SELECT * EXCLUDE (job_peak_utc, host_name) FROM job_peak(of_session) WHERE of_shares IS NULL
    ) AS j
    LEFT JOIN rank_span AS s ON s.session_id = of_session AND s.attempt = j.attempt AND s.rank = j.rank
),
-- The rank whose event made the peak.
maker AS MATERIALIZED (
    SELECT DISTINCT ON (s.device_type)
        s.device_type,
        s.job_peak_ns,
        s.attempt,
        s.rank,
        s.host_uid,
        s.clock_error_ns
    FROM share AS s
    INNER JOIN memory_event AS e
        ON e.time_ns = s.host_ns AND e.attempt = s.attempt AND e.rank = s.rank AND e.device = s.device AND e.seq = s.seq
    WHERE e.session_id = of_session
    ORDER BY s.device_type, s.attempt DESC, s.rank DESC
),
-- Every device of a rank on another host, and how far its clock may be off against the maker's.
other AS MATERIALIZED (
    SELECT
        t.attempt,
        t.rank,
        t.device,
        t.device_type,
        m.job_peak_ns,
        coalesce(s.offset_ns, 0) AS offset_ns,
        s.error_ns + m.clock_error_ns AS error_ns
    FROM peak_by_rank AS t
    INNER JOIN maker AS m ON m.device_type = t.device_type
    INNER JOIN rank_span AS s ON s.session_id = of_session AND s.attempt = t.attempt AND s.rank = t.rank
    INNER JOIN rank_group(of_session, 'job') AS g
        ON g.attempt = t.attempt AND g.rank = t.rank AND g.device = t.device
    WHERE t.session_id = of_session
        AND g.is_summed
        -- Imported ranks whose recordings name no host share this one's name and may share no clock.
        AND (
            s.host_uid IS DISTINCT FROM m.host_uid
            OR (s.host_uid = 'unknown' AND (s.attempt <> m.attempt OR s.rank <> m.rank))
        )
),
nearby AS (
    SELECT
        o.attempt,
        o.rank,
        o.device,
        least(min(e.requested_bytes), arg_min(before_bytes, e.seq)) AS lowest_bytes,
        greatest(max(e.requested_bytes), arg_min(before_bytes, e.seq)) AS highest_bytes
    FROM (
        SELECT
            attempt,
            rank,
            device,
            seq,
            time_ns,
            requested_bytes,
            requested_bytes
            - CASE action WHEN 'alloc' THEN size_bytes WHEN 'free_completed' THEN -size_bytes ELSE 0 END AS before_bytes
        FROM memory_event
        WHERE session_id = of_session
            AND requested_bytes IS NOT NULL
            AND time_ns >= (SELECT min(job_peak_ns - offset_ns - error_ns) FROM other)
            AND time_ns <= (SELECT max(job_peak_ns - offset_ns + error_ns) FROM other)
    ) AS e
    INNER JOIN other AS o USING (attempt, rank, device)
    WHERE e.time_ns + o.offset_ns BETWEEN o.job_peak_ns - o.error_ns AND o.job_peak_ns + o.error_ns
    GROUP BY o.attempt, o.rank, o.device
),
bound AS (
    SELECT
        o.device_type,
        max(o.error_ns) AS error_ns,
        bool_and(o.error_ns IS NOT NULL) AS is_measured,
        count(n.rank) AS num_uncertain,
        coalesce(sum(n.lowest_bytes - coalesce(s.requested_bytes, 0)), 0)::BIGINT AS below_bytes,
        coalesce(sum(n.highest_bytes - coalesce(s.requested_bytes, 0)), 0)::BIGINT AS above_bytes
    FROM other AS o
    LEFT JOIN nearby AS n USING (attempt, rank, device)
    LEFT JOIN share AS s USING (attempt, rank, device)
    GROUP BY o.device_type
),
-- What a rank held at the instant is certain up to the first hole in its log.
missing AS MATERIALIZED (
    SELECT attempt, rank, bool_or(is_bytes) AS is_known, bool_or(why = 'unexplained') AS is_unexplained
    FROM incompleteness
    WHERE session_id = of_session AND is_bytes IS DISTINCT FROM false
    GROUP BY attempt, rank
),
least AS (
    SELECT
        device_type,
        sum(CASE
            WHEN m.rank IS NULL OR (l.first_lost_seq IS NULL AND NOT m.is_unexplained) OR s.seq < l.first_lost_seq
                THEN s.requested_bytes
            ELSE 0
        END)::BIGINT AS certain_bytes
    FROM share AS s
    LEFT JOIN missing AS m USING (attempt, rank)
    LEFT JOIN rank_loss AS l ON l.session_id = of_session AND l.attempt = s.attempt AND l.rank = s.rank
    GROUP BY device_type
),
alone AS (
    SELECT device_type, max(at_least_bytes) AS at_least_bytes
    FROM peak_bound
    WHERE session_id = of_session
    GROUP BY device_type
),
summit AS (
    SELECT
        device_type,
        any_value(job_peak_bytes) AS job_peak_bytes,
        any_value(job_peak_ns) AS job_peak_ns,
        utc_of(any_value(job_peak_ns)) AS job_peak_utc,
        count(DISTINCT rank) AS num_ranks
    FROM share
    GROUP BY device_type
),
peaks AS (
    SELECT t.device_type, sum(t.peak_requested_bytes)::BIGINT AS sum_of_peaks_bytes
    FROM peak_by_rank AS t
    INNER JOIN rank_group(of_session, 'job') AS g USING (attempt, rank, device)
    WHERE t.session_id = of_session AND t.is_rank_peak AND g.is_summed
    GROUP BY t.device_type
)
SELECT
    t.device_type,
    t.job_peak_bytes,
    t.job_peak_ns,
    t.job_peak_utc,
    t.num_ranks,
    p.sum_of_peaks_bytes,
    p.sum_of_peaks_bytes - t.job_peak_bytes AS gap_bytes,
    CASE WHEN coalesce(b.is_measured, true) THEN coalesce(b.error_ns, 0) END AS clock_error_ns,
    CASE WHEN coalesce(b.is_measured, true) THEN t.job_peak_bytes + coalesce(b.below_bytes, 0) END AS lowest_bytes,
    CASE
        WHEN coalesce(b.is_measured, true) AND whole.is_exact IS DISTINCT FROM false
            THEN t.job_peak_bytes + coalesce(b.above_bytes, 0)
    END AS highest_bytes,
    coalesce(b.is_measured, true) AND coalesce(b.num_uncertain, 0) = 0
        AND whole.is_exact IS DISTINCT FROM false AS order_is_certain,
    whole.is_exact,
    greatest(
        CASE WHEN coalesce(b.is_measured, true) THEN c.certain_bytes + coalesce(b.below_bytes, 0) END,
        a.at_least_bytes
    ) AS at_least_bytes
FROM summit AS t
INNER JOIN peaks AS p USING (device_type)
LEFT JOIN bound AS b USING (device_type)
LEFT JOIN least AS c USING (device_type)
LEFT JOIN alone AS a USING (device_type)
CROSS JOIN (
    SELECT CASE WHEN count(*) = 0 THEN true WHEN bool_or(is_known) THEN false END AS is_exact
    FROM missing
) AS whole
CROSS JOIN unstreamed
ORDER BY t.device_type;

COMMENT ON MACRO TABLE job_peak_bound IS 'The job''s peak beside the sum of the ranks'' peaks, and what the error of the clocks and missing events leave open.';
