-- Question: what does the range say?
-- Parameter: number, the place of its opening marker.
SELECT s.value
FROM CUPTI_ACTIVITY_KIND_MARKER AS a
LEFT JOIN StringTable AS s ON s._id_ = a.name
WHERE a._id_ = :number
