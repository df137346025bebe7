-- Question: What happened, row by row? Of databases of the older name.
-- Columns: event, its type, name, time, process, thread, device, address, attributes, Python stack.
SELECT
    "Event", "Event Type", "Name", "Timestamp(ns)", "Process Id", "Thread Id", "Device Id", "Ptr", "Attr",
    "Call Stack(Python)"
FROM leaks_dump
ORDER BY rowid
