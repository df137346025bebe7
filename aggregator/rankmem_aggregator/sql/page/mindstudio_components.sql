-- Question: Which components of a rank reserved 100 MB or more, and when the most, as in MindStudio's table?
-- Parameters:
--   session (text): session id
--   rank (count): global rank
-- Columns:
--   Component, Peak Memory Reserved(MB), Timestamp(ms): as in mindstudio.component_peak
SELECT * FROM mindstudio.component_peak($session, $rank)
ORDER BY "Peak Memory Reserved(MB)" DESC, Component;
