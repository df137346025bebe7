-- Question: Where in the program does each kernel of an imported profile come from, backward ones included?
-- Columns:
--   session_id, attempt, rank, device, kernel_id, short_name, stream, direction: as in kernel_launch
--   duration_ns (ns): time on the device
--   launched_ns (ns): start of its launch, NULL where the profile has none
--   operator, layer, call_site: of the launch itself; for a backward kernel without them those of the forward kernel
--     that shares its autograd sequence number, the last one launched before it
--   forward_kernel_id: that forward kernel; NULL for forward kernels and where none is known
-- Scatter: hosts
CREATE OR REPLACE VIEW kernel_origin AS
WITH numbered AS (
    SELECT *, try_cast(sequence_ids AS BIGINT[])[1] AS sequence FROM kernel_launch
),
forward AS (
    SELECT
        session_id, attempt, rank, kernel_id, launched_ns, operator, layer, call_site,
        unnest(try_cast(sequence_ids AS BIGINT[])) AS sequence
    FROM kernel_launch
    WHERE direction = 'forward' AND launched_ns IS NOT NULL
)
SELECT
    k.session_id,
    k.attempt,
    k.rank,
    k.device,
    k.kernel_id,
    k.short_name,
    k.stream,
    k.direction,
    k.ended_ns - k.started_ns AS duration_ns,
    k.launched_ns,
    CASE WHEN k.direction = 'backward' THEN coalesce(f.operator, k.operator) ELSE k.operator END AS operator,
    coalesce(k.layer, f.layer) AS layer,
    coalesce(k.call_site, f.call_site) AS call_site,
    f.kernel_id AS forward_kernel_id
FROM numbered AS k
ASOF LEFT JOIN forward AS f
    ON f.session_id = k.session_id
    AND f.attempt = k.attempt
    AND f.rank = k.rank
    AND f.sequence = if(k.direction = 'backward' AND k.sequence <> 0, k.sequence, NULL)
    AND f.launched_ns <= k.launched_ns
ORDER BY k.session_id, k.attempt, k.rank, k.kernel_id;

COMMENT ON VIEW kernel_origin IS 'Kernels with operator, layer and call site; backward ones have their forward kernel''s.';
