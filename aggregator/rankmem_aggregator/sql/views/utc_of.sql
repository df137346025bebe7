-- Question: Which readable time is this count of nanoseconds?
-- Parameters:
--   time_ns (ns since 1970-01-01 UTC): any time of this database
-- Columns:
--   one value: TIMESTAMP WITH TIME ZONE, cut to whole microseconds
CREATE OR REPLACE MACRO utc_of(time_ns) AS make_timestamptz(time_ns // 1000);

COMMENT ON MACRO utc_of IS 'Nanoseconds since 1970 as TIMESTAMPTZ, cut to whole microseconds.';
