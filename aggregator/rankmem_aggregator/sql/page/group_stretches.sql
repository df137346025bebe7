-- Question: What did each group of a device's blocks hold at the end of each range of the log of which there is a summary?
-- Parameters:
--   session (text): session id
--   attempt, rank, device: which device
--   by (text): category, phase, stream or component
--   last_seq: the summaries up to this position of the log
-- Columns:
--   group_name: the group; NULL for blocks without one
--   seq: the group's last change in a range, which ends at a multiple of 1,024 positions, or where a pass over the log ended
--   bytes (bytes): what it held from then to the end of that range at least
--   summarised_seq: up to here the log is in the summaries
SELECT g.group_name, g.seq_last AS seq, g.last_bytes AS bytes, p.seq AS summarised_seq
FROM group_bucket AS g
INNER JOIN summary_progress AS p USING (session_id, attempt, rank)
WHERE g.session_id = $session
    AND g.attempt = $attempt
    AND g.rank = $rank
    AND g.device = $device
    AND g.group_by = $by
    AND g.seq_last <= least(p.seq, $last_seq)
ORDER BY g.seq_last, g.group_name;
