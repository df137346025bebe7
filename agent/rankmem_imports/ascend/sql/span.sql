-- Question: From when to when was it recorded?
SELECT min(startTimeNs), max(endTimeNs) FROM SESSION_TIME_INFO
