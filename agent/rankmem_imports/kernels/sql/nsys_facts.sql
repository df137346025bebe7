-- Question: what is said of the machine?
-- Columns: name (Hostname, NvDriverVersion), value.
SELECT name, value FROM TARGET_INFO_SYSTEM_ENV WHERE name IN ('Hostname', 'NvDriverVersion')
