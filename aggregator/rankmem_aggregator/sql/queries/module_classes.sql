-- Question: Of which class was each module of a rank?
-- Parameters:
--   session (text): session id
--   attempt (count): which start of the workers
--   rank (count): global rank
-- Columns:
--   module: path in the module tree
--   class: of the module
-- Scatter: none
SELECT module, class
FROM module
CROSS JOIN unstreamed
WHERE session_id = $session AND attempt = $attempt AND rank = $rank
ORDER BY module;
