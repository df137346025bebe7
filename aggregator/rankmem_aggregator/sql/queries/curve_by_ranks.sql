-- Question: How did the memory of ranks together go up and down over time?
-- Parameters:
--   session (text): session id
--   by (text): rank, host, device, dp, tp, pp, cp, ep or job
--   device_type (text): cpu, cuda, ...
--   figure (text): requested, allocated, active or reserved
--   ranks (text): global ranks with commas between; NULL for all
--   from_ns (ns, common clock): the beginning; NULL for the first event
--   until_ns (ns, common clock): the end; NULL for the last event
--   by_second (boolean): read by the second, each rank at its highest
-- Columns:
--   all columns of the macro curve_by_ranks
SELECT * FROM curve_by_ranks(
    $session,
    $by,
    $device_type,
    of_figure := $figure,
    of_ranks := string_split($ranks::VARCHAR, ',')::INTEGER[],
    from_ns := $from_ns::BIGINT,
    until_ns := $until_ns::BIGINT,
    by_second := $by_second::BOOLEAN
)
ORDER BY group_name, place;
