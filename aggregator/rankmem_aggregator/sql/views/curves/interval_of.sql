-- Question: In which of many equal intervals of a range does an instant lie?
-- Parameters:
--   at_ns (ns): the instant
--   from_ns, until_ns (ns, the same clock): the range, both ends included
--   num_intervals: how many
--   unit_ns (ns): times are divided by it before the intervals are counted; 1 unless the range is very long
-- Columns:
--   one value: from 0; -1 before the range, num_intervals after it
-- Scatter: none
CREATE OR REPLACE MACRO interval_of(at_ns, from_ns, until_ns, num_intervals, unit_ns) AS
CASE
    WHEN at_ns < from_ns THEN -1
    WHEN at_ns > until_ns THEN num_intervals
    ELSE (at_ns - from_ns) // unit_ns * num_intervals // ((until_ns - from_ns) // unit_ns + 1)
END::INTEGER;

COMMENT ON MACRO interval_of IS 'In which of many equal intervals of a range an instant lies.';
