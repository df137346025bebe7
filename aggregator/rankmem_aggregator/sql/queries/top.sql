-- Question: Which ranks hold most now, and how much could each still get?
-- Parameters:
--   session (text): session id
--   now_ns (ns, the aggregator's clock): the moment to ask of; NULL: that of the database's own machine
-- Columns:
--   all columns of the view rank_now
--   headroom_share: headroom_bytes as a part of device_total_bytes
--   age_ns (ns): since its last stored event; NULL once it has ended
-- Scatter: hosts
SELECT
    *,
    headroom_bytes / nullif(device_total_bytes, 0) AS headroom_share,
    CASE
        WHEN ended_ns IS NULL AND last_event_ns IS NOT NULL THEN greatest(coalesce($now_ns::BIGINT, epoch_ns(now())) - last_event_ns, 0)
    END AS age_ns
FROM rank_now
WHERE session_id = $session
ORDER BY used_bytes DESC, rank, device;
