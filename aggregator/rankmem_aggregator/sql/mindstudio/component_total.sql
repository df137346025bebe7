-- Question: What did MindStudio's components hold after each record, each alone and PTA and GE together?
-- Columns:
--   session_id, attempt, rank, device: whose
--   seq: the record's event
--   time_ns (ns, common clock): when
--   component: PTA (the framework's allocator, whatever its pools), GE, MindSpore or WORKSPACE: whose record it is
--   stream: of the record
--   allocated_bytes, reserved_bytes, active_bytes (bytes): of the component alone, after it
--   sum_name: PTA+GE or MindSpore+GE; NULL for WORKSPACE, and where there is nothing but GE
--   sum_stream: of the record, or of the last one of the other component
--   sum_allocated_bytes, sum_reserved_bytes, sum_active_bytes (bytes): of the two together
-- Scatter: hosts
CREATE OR REPLACE VIEW mindstudio.component_total AS
WITH stated AS (
    SELECT
        e.session_id,
        e.attempt,
        e.rank,
        e.device,
        e.seq,
        e.time_ns + coalesce(s.offset_ns, 0) AS time_ns,
        CASE e.component
            WHEN 'ge' THEN 'GE' WHEN 'mindspore' THEN 'MindSpore' WHEN 'workspace' THEN 'WORKSPACE' ELSE 'PTA'
        END AS component,
        e.stream,
        coalesce(e.allocated_bytes, e.requested_bytes) AS allocated_bytes,
        coalesce(e.reserved_bytes, e.requested_bytes) AS reserved_bytes,
        -- A recording of an NPU with allocated bytes and no active ones does not know the latter.
        CASE
            WHEN e.active_bytes IS NULL AND e.allocated_bytes IS NOT NULL AND split_part(e.device, ':', 1) = 'npu'
                THEN NULL
            ELSE coalesce(e.active_bytes, e.requested_bytes)
        END AS active_bytes
    FROM memory_event AS e
    LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
    WHERE e.requested_bytes IS NOT NULL AND e.device <> 'pinned'
),
-- An event stands for all components of its device, so what it changed is its own component's.
changed AS (
    SELECT
        *,
        allocated_bytes - lag(allocated_bytes, 1, 0) OVER log AS allocated_change,
        reserved_bytes - lag(reserved_bytes, 1, 0) OVER log AS reserved_change,
        active_bytes - lag(active_bytes, 1, 0) OVER log AS active_change,
        bool_or(component = 'MindSpore') OVER device AS has_mindspore,
        bool_or(component IN ('PTA', 'MindSpore')) OVER device AS has_framework
    FROM stated
    WHERE split_part(device, ':', 1) = 'npu'
    WINDOW
        device AS (PARTITION BY session_id, attempt, rank, device),
        log AS (PARTITION BY session_id, attempt, rank, device ORDER BY seq)
)
SELECT
    session_id,
    attempt,
    rank,
    device,
    seq,
    time_ns,
    component,
    stream,
    (sum(allocated_change) OVER own)::BIGINT AS allocated_bytes,
    (sum(reserved_change) OVER own)::BIGINT AS reserved_bytes,
    (sum(active_change) OVER own)::BIGINT AS active_bytes,
    CASE
        WHEN component = 'WORKSPACE' OR NOT has_framework THEN NULL
        WHEN has_mindspore THEN 'MindSpore+GE'
        ELSE 'PTA+GE'
    END AS sum_name,
    coalesce(
        stream,
        last_value(CASE WHEN component IN ('PTA', 'MindSpore') THEN {stream: stream} END IGNORE NULLS) OVER log.stream
    ) AS sum_stream,
    (sum(allocated_change) FILTER (WHERE component <> 'WORKSPACE') OVER log)::BIGINT AS sum_allocated_bytes,
    (sum(reserved_change) FILTER (WHERE component <> 'WORKSPACE') OVER log)::BIGINT AS sum_reserved_bytes,
    (sum(active_change) FILTER (WHERE component <> 'WORKSPACE') OVER log)::BIGINT AS sum_active_bytes
FROM changed
WINDOW
    own AS (PARTITION BY session_id, attempt, rank, device, component ORDER BY seq ROWS UNBOUNDED PRECEDING),
    log AS (PARTITION BY session_id, attempt, rank, device ORDER BY seq ROWS UNBOUNDED PRECEDING)
UNION ALL
SELECT
    *,
    'PTA+GE',
    stream,
    allocated_bytes,
    reserved_bytes,
    active_bytes
FROM stated
WHERE split_part(device, ':', 1) <> 'npu';

COMMENT ON VIEW mindstudio.component_total IS 'The totals of MindStudios components after each record, alone and summed.';
