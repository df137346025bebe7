-- Question: What does a stack look like, and which line of the user's project is nearest to the operator?
-- Columns:
--   stack_id: the stack
--   line: file:line of the frame of the project nearest to the operator (see frame_origin); where
--     there is none, of the nearest frame of Python, in brackets: [file:line]; NULL where no frame is Python's. Of a
--     job that kept its files to itself (RANKMEM_STACKS=names) the function
--   function: the function of that frame
--   frames: all frames as "file:line function", the one nearest to the operator first; without files functions
--   in_project: whether the line is the project's; NULL where there is no line
-- Scatter: none
CREATE OR REPLACE VIEW stack AS
WITH frame AS (
    SELECT
        stack_id,
        ordering,
        CASE WHEN line_number = 0 THEN function ELSE file_path || ':' || line_number END AS line,
        CASE WHEN line_number = 0 THEN function ELSE file_path || ':' || line_number || ' ' || function END AS text,
        function,
        -- Of a job that kept its files to itself no frame has a line. Elsewhere one without is a function of C that
        -- looks the same as that.
        CASE frame_origin(file_path, function)
            WHEN 'project' THEN ordering + CASE WHEN line_number = 0 THEN 500000 ELSE 0 END
            WHEN 'library' THEN ordering + 1000000
        END AS rank_of_line
    FROM stack_frame
),
nearest AS (
    SELECT
        stack_id,
        arg_min(line, rank_of_line) AS line,
        arg_min(function, rank_of_line) AS function,
        list(text ORDER BY ordering) AS frames,
        min(rank_of_line) < 1000000 AS in_project
    FROM frame
    GROUP BY stack_id
)
SELECT
    stack_id,
    CASE WHEN in_project THEN line ELSE '[' || line || ']' END AS line,
    function,
    frames,
    in_project
FROM nearest;

COMMENT ON VIEW stack IS 'A stack in one row: its frames, and the line of the project nearest to the operator.';
