-- Question: How high did each group of ranks get together, and how high does the sum of its ranks' own peaks reach? Exact.
-- Parameters:
--   of_session: session id
--   of_group: host, device, dp, tp, pp, cp, ep or job
-- Columns:
--   group_name: host name, device with its host, or coordinate; NULL where it is not known
--   device_type: the sums are over the devices of one type
--   num_ranks: ranks of the group
--   peak_bytes (bytes): the group's own peak, the highest sum over its ranks at one instant; of those with a clock
--     (rank_span), NULL where none has one
--   peak_time_ns (ns, common clock): the first such instant
--   peak_time_utc: the same, readable
--   sum_of_peaks_bytes (bytes): the same ranks' own peaks added up, though they happen at different instants
--   highest_rank: the rank whose own peak is highest
--   highest_peak_bytes (bytes): that peak
--   lowest_rank: the rank whose own peak is lowest
--   lowest_peak_bytes (bytes): that peak
-- Scatter: time
CREATE OR REPLACE MACRO peak_by_ranks(of_session, of_group) AS TABLE
WITH member AS (
    SELECT
        g.group_key,
        min(g.group_name) AS group_name,
        bool_or(g.is_summed) AS is_summed,
        p.device_type,
        count(DISTINCT p.rank) AS num_ranks,
        sum(p.peak_requested_bytes) FILTER (WHERE g.is_summed)::BIGINT AS sum_of_peaks_bytes,
        arg_max(p.rank, (p.peak_requested_bytes, -p.rank)) AS highest_rank,
        max(p.peak_requested_bytes) AS highest_peak_bytes,
        arg_min(p.rank, (p.peak_requested_bytes, p.rank)) AS lowest_rank,
        min(p.peak_requested_bytes) AS lowest_peak_bytes
    FROM rank_group(of_session, of_group) AS g
    INNER JOIN peak_by_rank AS p USING (attempt, rank, device)
    WHERE p.session_id = of_session AND p.is_rank_peak
    GROUP BY g.group_key, p.device_type
),
summit AS (
    SELECT group_key, device_type, any_value(group_peak_bytes) AS peak_bytes, any_value(group_peak_ns) AS peak_time_ns
    FROM group_peak(of_session, of_group)
    GROUP BY group_key, device_type
)
SELECT
    m.group_name,
    m.device_type,
    m.num_ranks,
    CASE WHEN m.is_summed THEN coalesce(s.peak_bytes, 0) END AS peak_bytes,
    s.peak_time_ns,
    utc_of(s.peak_time_ns) AS peak_time_utc,
    m.sum_of_peaks_bytes,
    m.highest_rank,
    m.highest_peak_bytes,
    m.lowest_rank,
    m.lowest_peak_bytes
FROM member AS m
LEFT JOIN summit AS s ON s.group_key IS NOT DISTINCT FROM m.group_key AND s.device_type = m.device_type
ORDER BY peak_bytes DESC NULLS LAST, m.device_type, m.group_name;

COMMENT ON MACRO TABLE peak_by_ranks IS 'The highest sum over the ranks of each host, device or parallel coordinate, and the sum of their peaks.';
