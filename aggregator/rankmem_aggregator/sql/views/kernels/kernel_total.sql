-- Question: How much time on the devices did each layer's kernels take in an imported profile, forward and backward?
-- Parameters:
--   of_session: session id
--   of_group: layer (the default), operator, call_site, short_name or stream
-- Columns:
--   rank, device: whose
--   group_name: the group's value; NULL for kernels without one
--   num_kernels: how many ran
--   total_ns (ns): their time on the device, added up
--   forward_ns, backward_ns (ns): of those that are known to be of forward, of backward
--   longest_ns (ns): of the longest
-- Scatter: hosts
CREATE OR REPLACE MACRO kernel_total(of_session, of_group := 'layer') AS TABLE
SELECT
    rank,
    device,
    CASE of_group
        WHEN 'layer' THEN layer
        WHEN 'operator' THEN operator
        WHEN 'call_site' THEN call_site
        WHEN 'short_name' THEN short_name
        WHEN 'stream' THEN stream::VARCHAR
        ELSE error('of_group is ' || of_group || '; it takes layer, operator, call_site, short_name or stream')
    END AS group_name,
    count(*) AS num_kernels,
    sum(duration_ns)::BIGINT AS total_ns,
    coalesce(sum(duration_ns) FILTER (WHERE direction = 'forward'), 0)::BIGINT AS forward_ns,
    coalesce(sum(duration_ns) FILTER (WHERE direction = 'backward'), 0)::BIGINT AS backward_ns,
    max(duration_ns) AS longest_ns
FROM kernel_origin
WHERE session_id = of_session
GROUP BY rank, device, group_name
ORDER BY rank, device, total_ns DESC, group_name;

COMMENT ON MACRO TABLE kernel_total IS 'Time of kernels by layer, operator, call site, name or stream.';
