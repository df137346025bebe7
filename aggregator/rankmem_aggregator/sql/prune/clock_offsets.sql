-- Question: Which clock offsets serve no rank any more: those of before the first rank that is left on the host?
-- Columns:
--   none: their rows of clock_offset are deleted; the view rank_span looks a minute back at most
DELETE FROM clock_offset AS c
WHERE NOT EXISTS (
    FROM rank_info AS r
    CROSS JOIN unstreamed
    WHERE r.host_uid = c.host_uid AND c.time_ns >= coalesce(r.started_at_ns, 0) - 60000000000
);
