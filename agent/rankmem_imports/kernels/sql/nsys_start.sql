-- Question: when did the capture begin?
-- Columns: nanoseconds since 1970 UTC.
SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME
