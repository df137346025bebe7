-- Question: what does a range say?
-- Parameter: number, its place.
-- Columns: text, start, end.
SELECT coalesce(n.text, s.value), n.start, n.end
FROM NVTX_EVENTS AS n
LEFT JOIN StringIds AS s ON s.id = n.textId
WHERE n.rowid = :number
