-- Question: What did the blocks that were alive after some events of a device mean, and what code had made them?
-- Parameters:
--   session (text): session id
--   points (JSON text): the events, a list of {attempt, rank, device, seq}
-- Columns:
--   point_seq: the event
--   category: what the bytes meant then
--   file, function: of the project's frame nearest to the operator, of backward's blocks that of the forward call;
--     file: NULL where files are not recorded
--   operator, module: that made them
--   live_bytes (bytes): of its blocks alive then
-- Scatter: hosts
SELECT
    b.point_seq,
    b.category,
    -- Of a job that kept its files to itself a line is a function.
    nullif(regexp_replace(s.line, '^\[|(:[0-9]+)?\]?$', '', 'g'), s.function) AS file,
    s.function,
    b.operator,
    b.module,
    sum(b.size_bytes)::BIGINT AS live_bytes
FROM live_at_points(
    $session, $points::VARCHAR::JSON::STRUCT(attempt INTEGER, rank INTEGER, device VARCHAR, seq BIGINT)[]
) AS b
LEFT JOIN stack AS s ON s.stack_id = coalesce(b.forward_stack_id, b.stack_id)
GROUP BY ALL
ORDER BY point_seq, category, file, function, operator, module;
