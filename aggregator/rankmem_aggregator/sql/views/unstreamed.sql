-- Question: Which row, joined to the last SELECT of a statement, keeps the statement from waiting for itself?
-- Columns:
--   one (count): 1
-- Scatter: none

-- DuckDB 2.0 hands rows of a CTE on to its readers while it is being made, and of readers that depend on one another each
-- can wait for the next: job_peak_bound did so for ever. Where the body of a CTE, or what follows it, holds a
-- recursion, however small, the CTE is made whole before anyone reads it, at no cost that could be measured.
CREATE OR REPLACE VIEW unstreamed AS
WITH RECURSIVE row_of(one) AS (
    SELECT 1
    UNION ALL
    SELECT one + 1 FROM row_of WHERE one < 1
)
SELECT one FROM row_of;

COMMENT ON VIEW unstreamed IS 'One row, to be joined to the last SELECT of a statement whose CTEs are to be made whole before they are read.';
