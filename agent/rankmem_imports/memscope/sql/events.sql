-- Question: What happened, row by row?
-- Columns: event, its type, name, time, process, thread, device, address, attributes, Python stack.
SELECT
    "Event", "Event Type", "Name", "Timestamp(ns)", "Process Id", "Thread Id", "Device Id", "Ptr", "Attr",
    "Call Stack(Python)"
FROM memscope_dump
ORDER BY rowid
