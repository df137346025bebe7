-- Question: Which readable time is this count of nanoseconds?
-- Parameters:
--   time_ns (ns since 1970-01-01 UTC): any time of this database
-- Columns:
--   one value: TIMESTAMP in UTC, cut to whole microseconds; without a zone, so that no setting shifts it and no
--   client needs a time zone library to read it. NULL before the year 2000, as a recording without times counts from 0
-- Scatter: none
CREATE OR REPLACE MACRO utc_of(time_ns) AS
    CASE WHEN time_ns >= 946684800000000000 THEN make_timestamp(time_ns // 1000) END;

COMMENT ON MACRO utc_of IS 'Nanoseconds since 1970 as TIMESTAMP in UTC, cut to whole microseconds; NULL without a wall clock.';
