-- Question: What was alive on several devices of ranks, each right after an event of its own? Exact.
-- Parameters:
--   of_session: session id
--   of_points: list of {attempt, rank, device, seq}: after which event of which device of a rank
-- Columns:
--   all columns of the view allocation_life
--   category: what the bytes meant then
--   device_type: cpu, cuda, ...
--   point_seq: the event
-- Scatter: hosts
CREATE OR REPLACE MACRO live_at_points(of_session, of_points) AS TABLE
WITH point AS MATERIALIZED (
    SELECT p.attempt, p.rank, p.device, p.seq AS point_seq
    FROM (SELECT unnest(of_points) AS p)
),
block AS (
    SELECT a.*, p.point_seq
    FROM allocation_life AS a
    INNER JOIN point AS p USING (attempt, rank, device)
    WHERE a.session_id = of_session
        AND a.allocation_id <= p.point_seq
        AND (a.freed_seq IS NULL OR a.freed_seq > p.point_seq)
),
meaning AS (
    SELECT attempt, rank, device, point_seq, allocation_id, arg_max(category, (seq, time_ns)) AS category
    FROM category_change AS c
    INNER JOIN point AS p USING (attempt, rank, device)
    WHERE c.session_id = of_session AND c.seq <= p.point_seq
    GROUP BY attempt, rank, device, point_seq, allocation_id
)
SELECT b.*, coalesce(m.category, b.first_category) AS category, split_part(b.device, ':', 1) AS device_type
FROM block AS b
LEFT JOIN meaning AS m USING (attempt, rank, device, point_seq, allocation_id);

COMMENT ON MACRO TABLE live_at_points IS 'The blocks alive after an event of each given device, with what they meant then.';
