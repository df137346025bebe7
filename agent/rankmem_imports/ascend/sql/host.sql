-- Question: Which host was it?
SELECT hostUid, hostName FROM HOST_INFO ORDER BY rowid LIMIT 1
