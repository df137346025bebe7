-- Question: What does a Python stack look like, and which line of the user's project is nearest to the operator?
-- Columns:
--   stack_id: the stack
--   line: file:line of the innermost frame inside the project (a relative path), else of the innermost frame;
--     of a job that kept its files to itself (RANKMEM_STACKS=names) the function
--   function: the function of that frame
--   frames: all frames as "file:line function", the one nearest to the operator first; without files functions
CREATE OR REPLACE VIEW stack AS
WITH frame AS (
    SELECT
        stack_id,
        ordering,
        CASE WHEN line_number = 0 THEN function ELSE file_path || ':' || line_number END AS line,
        CASE WHEN line_number = 0 THEN function ELSE file_path || ':' || line_number || ' ' || function END AS text,
        function,
        -- Frames without a file (<string>, <frozen importlib>) are nobody's project; nor is an environment
        -- that lies inside it (.venv/lib/…/site-packages).
        NOT (
            starts_with(file_path, '/')
            OR starts_with(file_path, '<')
            OR file_path[2:2] = ':'
            OR contains(file_path, 'site-packages/')
            OR contains(file_path, 'dist-packages/')
        ) AS in_project
    FROM stack_frame
)
SELECT
    stack_id,
    arg_min(line, ordering + CASE WHEN in_project THEN 0 ELSE 1000000 END) AS line,
    arg_min(function, ordering + CASE WHEN in_project THEN 0 ELSE 1000000 END) AS function,
    list(text ORDER BY ordering) AS frames
FROM frame
GROUP BY stack_id;

COMMENT ON VIEW stack IS 'A Python stack in one row: its frames, and the line of the project nearest to the operator.';
