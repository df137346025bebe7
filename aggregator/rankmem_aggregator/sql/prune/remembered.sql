-- Question: Which deleted sessions need not be remembered any more?
-- Parameters:
--   before_ns (ns, the aggregator's clock): deleted before
-- Columns:
--   none: their rows of pruned_spool are deleted
DELETE FROM pruned_spool WHERE pruned_ns < $before_ns AND NOT has_rows;
