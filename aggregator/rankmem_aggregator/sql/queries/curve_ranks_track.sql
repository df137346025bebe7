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
WITH span AS (
    SELECT
        p.device_type,
        p.rank,
        p.host_uid,
        p.peak_requested_bytes,
        b.first_ns + coalesce(s.offset_ns, 0) AS first_ns,
        b.last_ns + coalesce(s.offset_ns, 0) AS last_ns,
        b.events
    FROM peak_by_rank AS p
    INNER JOIN memory_bucket AS b USING (session_id, attempt, rank, device)
    LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
    WHERE p.session_id = $session
        AND b.session_id = $session
        AND ($ranks::VARCHAR IS NULL OR list_contains(string_split($ranks, ',')::INTEGER[], p.rank))
        AND ($device_type::VARCHAR IS NULL OR p.device_type = $device_type)
),
-- A rank without a clock (imported from a recording without times) is in no curve over several.
timed AS (
    SELECT *
    FROM span
    QUALIFY utc_of(first_ns) IS NOT NULL OR count(DISTINCT rank) OVER () = 1
)
SELECT
    device_type,
    count(DISTINCT rank) AS num_ranks,
    count(DISTINCT host_uid) AS num_hosts,
    list(DISTINCT rank ORDER BY rank) AS ranks,
    min(first_ns) AS first_ns,
    max(last_ns) AS last_ns,
    coalesce(sum(timed.events) FILTER (
        WHERE ($from_ns::BIGINT IS NULL OR last_ns >= $from_ns) AND ($until_ns::BIGINT IS NULL OR first_ns <= $until_ns)
    ), 0)::BIGINT AS events,
    sum(timed.events)::BIGINT AS all_events
FROM timed
GROUP BY device_type
ORDER BY max(peak_requested_bytes) DESC, device_type
LIMIT 1;
