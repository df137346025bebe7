-- Question: the same, for exports before registered texts.
-- Parameter: number, its place.
-- Columns: text, start, end.
SELECT n.text, n.start, n.end FROM NVTX_EVENTS AS n WHERE n.rowid = :number
