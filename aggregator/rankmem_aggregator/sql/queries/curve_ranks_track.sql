-- Question: Which ranks does a request for their sum select, and how many events do they have?
-- Parameters:
--   session (text): session id
--   ranks (text): global ranks with commas between; NULL for all
--   device_type (text): cpu, cuda, ...; NULL for that of the highest rank
--   from_ns (ns, common clock): the beginning; NULL for the first event
--   until_ns (ns, common clock): the end; NULL for the last event
-- Columns:
--   device_type: cpu, cuda, ...
--   num_ranks, num_hosts: how many have events
--   ranks: those of the given ranks that have events
--   first_ns, last_ns (ns, common clock): their first and last event
--   events: in the seconds that the range touches
--   all_events: in all
-- Scatter: none
WITH life AS MATERIALIZED (
    SELECT attempt, rank, host_uid, coalesce(offset_ns, 0) AS offset_ns
    FROM rank_span
    WHERE session_id = $session
),
-- A rank without a clock (imported from a recording without times) is in no curve over several.
device AS MATERIALIZED (
    SELECT *
    FROM (
        SELECT
            split_part(c.device, ':', 1) AS device_type,
            c.rank,
            l.host_uid,
            utc_of(c.first_ns + coalesce(l.offset_ns, 0)) IS NOT NULL AS is_timed,
            max(c.peak_bytes) AS peak_bytes,
            min(c.first_ns + coalesce(l.offset_ns, 0)) AS first_ns,
            max(c.last_ns + coalesce(l.offset_ns, 0)) AS last_ns,
            sum(c.events) AS events
        FROM memory_cell($session, 1024) AS c
        LEFT JOIN life AS l USING (attempt, rank)
        WHERE ($ranks::VARCHAR IS NULL OR list_contains(string_split($ranks, ',')::INTEGER[], c.rank))
            AND ($device_type::VARCHAR IS NULL OR split_part(c.device, ':', 1) = $device_type)
        GROUP BY ALL
    )
    QUALIFY is_timed OR count(DISTINCT rank) OVER () = 1
),
touched AS (
    SELECT split_part(b.device, ':', 1) AS device_type, sum(b.events) AS events
    FROM memory_bucket AS b
    LEFT JOIN life AS l USING (attempt, rank)
    WHERE b.session_id = $session
        AND ($ranks::VARCHAR IS NULL OR list_contains(string_split($ranks, ',')::INTEGER[], b.rank))
        AND ($device_type::VARCHAR IS NULL OR split_part(b.device, ':', 1) = $device_type)
        AND (
            (SELECT count(DISTINCT rank) FROM device) = 1 OR utc_of(b.first_ns + coalesce(l.offset_ns, 0)) IS NOT NULL
        )
        AND ($from_ns::BIGINT IS NULL OR b.last_ns + coalesce(l.offset_ns, 0) >= $from_ns)
        AND ($until_ns::BIGINT IS NULL OR b.first_ns + coalesce(l.offset_ns, 0) <= $until_ns)
    GROUP BY device_type
)
SELECT
    d.device_type,
    count(DISTINCT d.rank) AS num_ranks,
    count(DISTINCT d.host_uid) AS num_hosts,
    list(DISTINCT d.rank ORDER BY d.rank) AS ranks,
    min(d.first_ns) AS first_ns,
    max(d.last_ns) AS last_ns,
    coalesce(any_value(t.events), 0)::BIGINT AS events,
    sum(d.events)::BIGINT AS all_events
FROM device AS d
LEFT JOIN touched AS t USING (device_type)
CROSS JOIN unstreamed
GROUP BY d.device_type
ORDER BY max(d.peak_bytes) DESC, d.device_type
LIMIT 1;
