-- Question: Which ranks and devices belong together, by host, device or parallel coordinate?
-- Parameters:
--   of_session: session id
--   of_group: host, device, dp, tp, pp, cp or ep; job, or anything else, for all together
-- Columns:
--   attempt, rank, device: a device of a rank
--   group_key: what the group is known by: host uid, host uid and device, or coordinate
--   group_name: the same for people: host name, host name and device, or coordinate; NULL where it is not known
--   is_summed: whether sums over the group can have it: it has a clock, or is the only rank there,
--     with one device of its type
-- Scatter: none
CREATE OR REPLACE MACRO rank_group(of_session, of_group) AS TABLE
SELECT
    b.attempt,
    b.rank,
    b.device,
    CASE of_group
        WHEN 'host' THEN r.host_uid
        -- An index means nothing across processes: without a UUID a device is its rank's own.
        WHEN 'device' THEN concat_ws(' ', r.host_uid, coalesce(
            d.uuid, CASE WHEN b.device IN ('cpu', 'pinned') THEN b.device ELSE b.device || ' ' || b.rank END
        ))
        WHEN 'dp' THEN r.dp::VARCHAR
        WHEN 'tp' THEN r.tp::VARCHAR
        WHEN 'pp' THEN r.pp::VARCHAR
        WHEN 'cp' THEN r.cp::VARCHAR
        WHEN 'ep' THEN r.ep::VARCHAR
    END AS group_key,
    CASE of_group
        WHEN 'host' THEN h.host_name
        WHEN 'device' THEN concat_ws(' ', h.host_name, b.device)
        ELSE group_key
    END AS group_name,
    coalesce(s.has_clock, true) OR (
        count(*) OVER (PARTITION BY split_part(b.device, ':', 1), group_key) = 1
        AND min((b.attempt, b.rank)) OVER (PARTITION BY group_key)
        = max((b.attempt, b.rank)) OVER (PARTITION BY group_key)
    ) AS is_summed
FROM (
    SELECT DISTINCT session_id, attempt, rank, device
    FROM memory_cell(of_session, 1024)
) AS b
LEFT JOIN rank_info AS r USING (session_id, attempt, rank)
LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
LEFT JOIN device_info AS d USING (session_id, attempt, rank, device)
LEFT JOIN host_info AS h ON r.host_uid = h.host_uid;

COMMENT ON MACRO TABLE rank_group IS 'Which group of ranks each device of a rank belongs to.';
