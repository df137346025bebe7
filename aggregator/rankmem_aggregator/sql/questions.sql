-- The questions that only forward: each orders, for one session, the rows of a view or macro that has the answer.
-- A line "name:" begins each; what follows it is one statement with its head, as the files of queries/ have it.

-- name: sessions
-- Question: Which sessions are stored? The newest first.
-- Columns:
--   all columns of the view session_overview
-- Scatter: none
SELECT * FROM session_overview
ORDER BY started_ns DESC, session_id DESC;

-- name: hosts
-- Question: Which hosts ran ranks of a session?
-- Parameters:
--   session (text): session id
-- Columns:
--   all columns of the view host_overview
-- Scatter: none
SELECT * FROM host_overview
WHERE session_id = $session
ORDER BY host_name, host_uid;

-- name: peak
-- Question: How high did each rank get, on each device and attempt? The highest first.
-- Parameters:
--   session (text): session id
--   attempt (count): which start of the workers; NULL for all
--   rank (count): global rank; NULL for all
-- Columns:
--   all columns of the view peak_by_rank
-- Scatter: hosts
SELECT * FROM peak_by_rank
WHERE session_id = $session
    AND ($attempt::INTEGER IS NULL OR attempt = $attempt)
    AND ($rank::INTEGER IS NULL OR rank = $rank)
ORDER BY peak_requested_bytes DESC, attempt, rank, device;

-- name: peak_bound
-- Question: Is each rank's peak exact, and where events are missing, how high was it at least?
-- Parameters:
--   session (text): session id
-- Columns:
--   all columns of the view peak_bound
-- Scatter: hosts
SELECT * FROM peak_bound
WHERE session_id = $session
ORDER BY attempt, rank, device;

-- name: peak_by_group
-- Question: How high did each group of a rank's blocks get by itself, and what did it hold at the rank's own peak?
-- Parameters:
--   session (text): session id
--   by (text): category, phase, operator, module, line, step or annotation; stream and component: peak_by_allocator
--   rank (count): global rank; NULL for all
-- Columns:
--   all columns of the macro peak_by_group
-- Scatter: hosts
SELECT * FROM peak_by_group($session, $by, of_rank := $rank::INTEGER)
ORDER BY rank_peak_bytes DESC, rank, device, bytes_at_rank_peak DESC, peak_bytes DESC, group_name;

-- name: knows_group
-- Question: Does this database's own SQL know a grouping of blocks? One of an older version may not.
-- Parameters:
--   of_group (text): a grouping of blocks
-- Columns:
--   knows: true if a block with a value for it is in a group of that name
-- Scatter: none
SELECT group_of_block(
    $of_group,
    {
        operator: 'a', module: 'a', line: 'a', category: 'a', phase: 'a', step: 1, annotation: 'a',
        stream: 1, component: 'a', preexisting: false
    }
) IS NOT NULL AS knows
ORDER BY knows;

-- name: peak_by_allocator
-- Question: How high did each stream or component of a rank get, in blocks and in segments, and the process beyond them?
-- Parameters:
--   session (text): session id
--   by (text): stream or component
--   rank (count): global rank; NULL for all
-- Columns:
--   all columns of the macro allocator_peak
-- Scatter: hosts
SELECT * FROM allocator_peak($session, $by, of_rank := $rank::INTEGER)
ORDER BY rank_peak_bytes DESC, rank, device, is_sampled, group_name <> 'app', bytes_at_rank_peak DESC, peak_bytes DESC, group_name;

-- name: peak_by_ranks
-- Question: How high did each group of ranks get together, and how high does the sum of their own peaks reach?
-- Parameters:
--   session (text): session id
--   by (text): host, device, dp, tp, pp, cp, ep or job
-- Columns:
--   all columns of the macro peak_by_ranks
-- Scatter: time
SELECT * FROM peak_by_ranks($session, $by)
ORDER BY peak_bytes DESC, device_type, group_name;

-- name: peak_by_host
-- Question: Which host stood highest, and which of its ranks? The highest first.
-- Parameters:
--   session (text): session id
-- Columns:
--   all columns of the view peak_by_host
-- Scatter: hosts
SELECT * FROM peak_by_host
WHERE session_id = $session
ORDER BY peak_requested_bytes DESC, attempt, host_name, device_type;

-- name: job_peak
-- Question: At which instant did the sum over all ranks stand highest, and what was each rank's share then?
-- Parameters:
--   session (text): session id
-- Columns:
--   all columns of the macro job_peak
-- Scatter: time
SELECT * FROM job_peak($session)
ORDER BY device_type, requested_bytes DESC, attempt, rank, device;

-- name: job_peak_bound
-- Question: How far below the sum of the ranks' peaks is the job's, and could the clocks change it?
-- Parameters:
--   session (text): session id
--   shares (text): rows of job_peak where they are known; NULL: it is asked again
-- Columns:
--   all columns of the macro job_peak_bound
-- Scatter: time
SELECT * FROM job_peak_bound($session, of_shares := $shares::VARCHAR)
ORDER BY device_type;

-- name: job_peak_held
-- Question: What held the memory of the job at the instant of its peak?
-- Parameters:
--   session (text): session id
--   by (text): operator, module, line, category, phase, step, annotation, stream or component
--   shares (text): rows of job_peak where they are known; NULL: it is asked again
-- Columns:
--   all columns of the macro job_peak_held
-- Scatter: time
SELECT * FROM job_peak_held($session, $by, of_shares := $shares::VARCHAR)
ORDER BY device_type, live_bytes DESC, group_name;

-- name: held_at
-- Question: What did every rank hold at one instant? The largest first.
-- Parameters:
--   session (text): session id
--   time_ns (ns, common clock): the instant
-- Columns:
--   all columns of the macro held_at
-- Scatter: hosts
SELECT * FROM held_at($session, $time_ns)
ORDER BY requested_bytes DESC, attempt, rank, device;

-- name: steps
-- Question: How high did each training step get, how much did it allocate, and what does memory gain from step to step?
-- Parameters:
--   session (text): session id
--   rank (count): global rank; NULL for all
-- Columns:
--   all columns of the macro step_total
-- Scatter: hosts
SELECT * FROM step_total($session, of_rank := $rank::INTEGER)
ORDER BY rank, device, attempt, step;

-- name: modules
-- Question: Which modules held the memory at the peak, each with all that is within it?
-- Parameters:
--   session (text): session id
--   rank (count): global rank; NULL for all ranks added up, each at its own peak
-- Columns:
--   all columns of the macro module_at_peak
-- Scatter: sums
SELECT * FROM module_at_peak($session, of_rank := $rank::INTEGER)
ORDER BY device_type, string_split(module, '.') NULLS LAST;

-- name: weights
-- Question: Which parameters does the model have on a rank? The largest first.
-- Parameters:
--   session (text): session id
--   rank (count): global rank; NULL for all
-- Columns:
--   all columns of the view weight_line, of each rank's last attempt that reported any
-- Scatter: hosts
SELECT * FROM weight_line
WHERE session_id = $session AND ($rank::INTEGER IS NULL OR rank = $rank)
QUALIFY attempt = max(attempt) OVER (PARTITION BY rank)
ORDER BY rank, size_bytes DESC, name;

-- name: oom
-- Question: Which allocations failed in a session? The earliest first.
-- Parameters:
--   session (text): session id
--   rank (count): global rank; NULL for all
-- Columns:
--   all columns of the view oom_overview
-- Scatter: hosts
SELECT * FROM oom_overview
WHERE session_id = $session AND ($rank::INTEGER IS NULL OR rank = $rank)
ORDER BY time_ns, attempt, rank, seq;

-- name: curve
-- Question: How did a rank's memory go up and down, second by second?
-- Parameters:
--   session (text): session id
--   rank (count): global rank
--   attempt (count): which start of the workers; NULL for all
-- Columns:
--   all columns of the macro memory_curve
-- Scatter: none
SELECT * FROM memory_curve($session, $rank, of_attempt := $attempt::INTEGER)
ORDER BY device, attempt, bucket_ns;

-- name: curve_by_ranks
-- Question: How did the memory of ranks together go up and down over time?
-- Parameters:
--   session (text): session id
--   by (text): rank, host, device, dp, tp, pp, cp, ep or job
--   device_type (text): cpu, cuda, ...
--   figure (text): requested, allocated, active or reserved
--   ranks (text): global ranks with commas between; NULL for all
--   from_ns (ns, common clock): the beginning; NULL for the first event
--   until_ns (ns, common clock): the end; NULL for the last event
--   by_second (boolean): read by the second, each rank at its highest
-- Columns:
--   all columns of the macro curve_by_ranks
-- Scatter: none
SELECT * FROM curve_by_ranks(
    $session,
    $by,
    $device_type,
    of_figure := $figure,
    of_ranks := string_split($ranks::VARCHAR, ',')::INTEGER[],
    from_ns := $from_ns::BIGINT,
    until_ns := $until_ns::BIGINT,
    by_second := $by_second::BOOLEAN
)
ORDER BY group_name, place;

-- name: incompleteness
-- Question: What is missing of a session's ranks, since when, and why (no row: nothing that anybody knows of)?
-- Parameters:
--   session (text): session id
-- Columns:
--   all columns of the view incompleteness
-- Scatter: hosts
SELECT * FROM incompleteness
WHERE session_id = $session
ORDER BY attempt, rank, since_ns NULLS FIRST, why, what, detail, sentence;

-- name: optimizers_of_ranks
-- Question: Which optimizers ended the steps of each rank?
-- Parameters:
--   session (text): session id
--   rank (count): global rank; NULL for all
-- Columns:
--   attempt, rank: whose
--   optimizer: its class; user where the user marked the step; model call where there is no optimizer
-- Scatter: hosts
SELECT DISTINCT attempt, rank, optimizer
FROM step
WHERE session_id = $session AND ($rank::INTEGER IS NULL OR rank = $rank) AND optimizer IS NOT NULL
ORDER BY attempt, rank, optimizer;

-- name: rank_coordinates
-- Question: Where in the job is each rank: its host, and its parallel coordinates where it reported any?
-- Parameters:
--   session (text): session id
-- Columns:
--   attempt, rank: whose
--   host_name: its host
--   world_size (count): ranks that the launcher announced; NULL where it announced none
--   dp, tp, pp, cp, ep: coordinates; NULL where they are not known
--   is_running: true while the rank has no end
-- Scatter: hosts
SELECT
    r.attempt, r.rank, h.host_name, r.world_size, r.dp, r.tp, r.pp, r.cp, r.ep, s.ended_ns IS NULL AS is_running
FROM rank_info AS r
LEFT JOIN host_info AS h ON r.host_uid = h.host_uid
LEFT JOIN rank_span AS s ON r.session_id = s.session_id AND r.attempt = s.attempt AND r.rank = s.rank
WHERE r.session_id = $session
ORDER BY attempt, rank;

-- name: job_peak_interval
-- Question: Between which bounds does the job's peak lie, by summaries alone?
-- Parameters:
--   session (text): session id
-- Columns:
--   all columns of the macro job_peak_interval
-- Scatter: none
SELECT * FROM job_peak_interval($session)
ORDER BY device_type;

-- name: job_peak_lowest
-- Question: The same as job_peak, where events that are not here stand for what ranks held at least?
-- Parameters:
--   session (text): session id
-- Columns:
--   all columns of the macro job_peak
-- Scatter: none
SELECT * FROM job_peak($session)
ORDER BY device_type, requested_bytes DESC, attempt, rank, device;

-- name: job_peak_highest
-- Question: The same as job_peak, where events that are not here stand for what ranks held at most?
-- Parameters:
--   session (text): session id
-- Columns:
--   all columns of the macro job_peak
-- Scatter: none
SELECT * FROM job_peak($session)
ORDER BY device_type, requested_bytes DESC, attempt, rank, device;

-- name: job_peak_bound_here
-- Question: The same as job_peak_bound, of a session whose events around the peak are here and others may not be?
-- Parameters:
--   session (text): session id
--   shares (text): rows of job_peak
-- Columns:
--   all columns of the macro job_peak_bound
-- Scatter: none
SELECT * FROM job_peak_bound($session, of_shares := $shares::VARCHAR)
ORDER BY device_type;

-- name: clock_error
-- Question: By how much may the clock of a rank be off, the largest?
-- Parameters:
--   session (text): session id
-- Columns:
--   error_ns (ns): 0 where no clock was compared
-- Scatter: none
SELECT coalesce(max(error_ns), 0)::BIGINT AS error_ns
FROM rank_span
WHERE session_id = $session
ORDER BY error_ns;

-- name: stretches_counted
-- Question: How many stretches of a session's logs stayed on their hosts, and how many of these are here?
-- Parameters:
--   session (text): session id
-- Columns:
--   stretches, here: as in the view rank_availability, of all ranks
-- Scatter: none
SELECT coalesce(sum(stretches), 0)::BIGINT AS stretches, coalesce(sum(here), 0)::BIGINT AS here
FROM rank_availability
WHERE session_id = $session
ORDER BY stretches;
