-- What the questions (questions.sql) share, in standard SQL: run duckdb.sql or spark.sql first.
--
-- Times here are on the clock of their host, in ns since its boot. A boot names a clock; a process
-- that does not know its boot has a clock of its own.

-- The clocks, one row for each process. `error_ns` is how far a time of NCCL's threads may be off.
CREATE OR REPLACE TEMPORARY VIEW clock AS
SELECT
  job,
  process,
  CAST(rank AS INT) AS rank,
  host,
  coalesce(boot, concat('process ', CAST(process AS VARCHAR(20)))) AS boot,
  coalesce(utc_offset_ns, 0) AS utc_offset_ns,
  clock_error_ns AS error_ns,
  ns(last) - coalesce(utc_offset_ns, 0) AS end_ns,
  is_closed
FROM clock_bounds;

-- The communicators, one row for each: how many ranks it has, and what it is called.
CREATE OR REPLACE TEMPORARY VIEW communicator AS
SELECT job, comm, max(ranks) AS ranks, coalesce(min(label), min(name), comm) AS label
FROM communicators
GROUP BY job, comm;

-- The ranks of communicators.
CREATE OR REPLACE TEMPORARY VIEW member AS
SELECT DISTINCT
  communicators.job,
  communicators.comm,
  communicators.comm_rank,
  communicators.process,
  clock.rank,
  clock.host,
  clock.boot
FROM communicators
JOIN clock ON clock.job = communicators.job AND clock.process = communicators.process;

-- The operations while the GPU worked on them. `nth` tells operations apart that share all numbers,
-- as those of a graph may. `algorithm_bytes` and `bus_bytes` are what nccl-tests divides by the time.
CREATE OR REPLACE TEMPORARY VIEW execution AS
SELECT
  o.job,
  o.process,
  clock.rank,
  clock.host,
  clock.boot,
  o.comm,
  communicator.label,
  communicator.ranks,
  o.operation,
  coalesce(o.replay, 0) AS replay,
  o.function,
  o.datatype,
  o.count,
  o.seq,
  row_number() OVER (
    PARTITION BY o.job, o.process, o.comm, o.operation, o.replay, o.function, o.datatype, o.count ORDER BY o.begin
  ) AS nth,
  ns(o.begin) - clock.utc_offset_ns AS begin_ns,
  ns(o.begin) - clock.utc_offset_ns + o.duration_ns AS end_ns,
  o.duration_ns,
  o.time_error_ns AS error_ns,
  o.bytes,
  CASE
    WHEN communicator.ranks IS NULL THEN NULL
    WHEN o.function IN ('AllGather', 'ReduceScatter', 'AlltoAll', 'Gather', 'Scatter') THEN o.bytes * communicator.ranks
    ELSE o.bytes
  END AS algorithm_bytes,
  CASE
    WHEN communicator.ranks IS NULL THEN NULL
    WHEN o.function = 'AllReduce' THEN o.bytes * 2e0 * (communicator.ranks - 1) / communicator.ranks
    WHEN o.function IN ('AllGather', 'ReduceScatter', 'AlltoAll', 'Gather', 'Scatter') THEN o.bytes * (communicator.ranks - 1e0)
    ELSE o.bytes * 1e0
  END AS bus_bytes,
  o.matched_by,
  o.proxy_wait_ns,
  o.proxy_wait_reason
FROM operations AS o
JOIN clock ON clock.job = o.job AND clock.process = o.process
LEFT JOIN communicator ON communicator.job = o.job AND communicator.comm = o.comm
WHERE o.begin IS NOT NULL;

-- What a clock shows of a collective that nobody leaves before the last has entered: when its last
-- rank had entered, and its first left.
CREATE OR REPLACE TEMPORARY VIEW crossing AS
SELECT
  job, comm, operation, replay, function, datatype, count, nth, boot,
  max(begin_ns) AS entered_ns,
  min(end_ns) AS left_ns,
  max(error_ns) AS error_ns
FROM execution
WHERE operation IS NOT NULL
  AND duration_ns IS NOT NULL
  AND error_ns IS NOT NULL
  AND function IN ('AllReduce', 'AllGather', 'ReduceScatter', 'AlltoAll')
  AND matched_by LIKE 'exact%'
GROUP BY job, comm, operation, replay, function, datatype, count, nth, boot;

-- The clock that a communicator's others are compared with: that of its first rank.
CREATE OR REPLACE TEMPORARY VIEW reference AS
SELECT job, comm, min_by(boot, comm_rank) AS boot FROM member GROUP BY job, comm;

-- How far each clock of a communicator is ahead of its first rank's, in each window of 10 ms, and how
-- far off that may be. Only the order of events is used, no wall clock: an operation had not been
-- left on one host when it was entered on the other. That bounds the difference from both sides, and
-- all operations of a window together bound it best. Two clocks may drift apart by 1000 ppm, as NTP
-- slews each by up to 500. Where the bounds contradict each other, nothing is known: a clock was set,
-- or a match is wrong.
CREATE OR REPLACE TEMPORARY VIEW host_clock AS
SELECT
  job,
  comm,
  boot,
  time_window,
  CASE WHEN least_ns <= most_ns THEN least_ns + CAST(floor((most_ns - least_ns) / 2e0) AS BIGINT) END AS ahead_ns,
  CASE WHEN least_ns <= most_ns THEN CAST(ceil((most_ns - least_ns) / 2e0) AS BIGINT) END AS error_ns
FROM (
  SELECT
    other.job,
    other.comm,
    other.boot,
    CAST(floor(other.entered_ns / 1e7) AS BIGINT) AS time_window,
    max(other.entered_ns - it.left_ns - other.error_ns - it.error_ns)
      - CAST(ceil((max(other.entered_ns) - min(other.entered_ns)) / 1e3) AS BIGINT) AS least_ns,
    min(other.left_ns - it.entered_ns + other.error_ns + it.error_ns)
      + CAST(ceil((max(other.entered_ns) - min(other.entered_ns)) / 1e3) AS BIGINT) AS most_ns
  FROM reference
  JOIN crossing AS it ON it.job = reference.job AND it.comm = reference.comm AND it.boot = reference.boot
  JOIN crossing AS other
    ON other.job = it.job AND other.comm = it.comm AND other.operation = it.operation AND other.replay = it.replay
    AND other.function = it.function AND other.nth = it.nth AND other.count = it.count AND other.datatype = it.datatype
    AND other.boot <> it.boot
  GROUP BY other.job, other.comm, other.boot, CAST(floor(other.entered_ns / 1e7) AS BIGINT)
) AS bounds;

-- When each rank came to each collective, by the clock of the communicator's first rank; NULL where
-- nothing relates the two. `error_ns` has the errors of the kernel's time and of the clocks.
CREATE OR REPLACE TEMPORARY VIEW arrival AS
SELECT
  execution.job, execution.comm, execution.label, execution.ranks, execution.operation, execution.replay,
  execution.function, execution.datatype, execution.count, execution.nth, execution.seq, execution.rank,
  execution.host,
  execution.duration_ns,
  CASE
    WHEN execution.boot = reference.boot THEN execution.begin_ns
    ELSE execution.begin_ns - host_clock.ahead_ns
  END AS came_ns,
  CASE
    WHEN execution.boot = reference.boot THEN execution.error_ns
    ELSE execution.error_ns + host_clock.error_ns
  END AS error_ns
FROM execution
JOIN reference ON reference.job = execution.job AND reference.comm = execution.comm
LEFT JOIN host_clock
  ON host_clock.job = execution.job AND host_clock.comm = execution.comm AND host_clock.boot = execution.boot
  AND host_clock.time_window = CAST(floor(execution.begin_ns / 1e7) AS BIGINT)
WHERE execution.seq IS NOT NULL AND execution.operation IS NOT NULL;

-- By how much each rank came later than the first, and how far off that may be.
CREATE OR REPLACE TEMPORARY VIEW lateness AS
SELECT
  arrival.*,
  came_ns - min(came_ns) OVER same AS late_ns,
  error_ns + max(error_ns) OVER same AS late_error_ns,
  count(*) OVER same AS present,
  count(came_ns) OVER same AS timed,
  CASE WHEN came_ns IS NOT NULL THEN count(came_ns) OVER same + 1 - row_number() OVER in_order END AS from_last,
  came_ns - lag(came_ns) OVER in_order AS after_ns,
  lag(error_ns) OVER in_order AS error_before_ns
FROM arrival
WINDOW
  same AS (PARTITION BY job, comm, operation, replay, function, datatype, count, nth),
  in_order AS (
    PARTITION BY job, comm, operation, replay, function, datatype, count, nth
    ORDER BY CASE WHEN came_ns IS NULL THEN 1 ELSE 0 END, came_ns, rank
  );

-- The transfers of the proxy to other hosts or back, with both ends. `error_ns` is how far a wait may
-- be off.
CREATE OR REPLACE TEMPORARY VIEW transfer AS
SELECT
  s.job,
  here.rank,
  here.host,
  peer.rank AS peer_rank,
  peer.host AS peer_host,
  s.comm,
  communicator.label,
  s.peer,
  s.direction,
  s.channel,
  s.step,
  s.bytes,
  s.duration_ns,
  s.gpu_wait_ns,
  s.peer_wait_ns,
  s.network_wait_ns,
  s.flush_wait_ns,
  2 * clock.error_ns AS error_ns
FROM proxy_steps AS s
JOIN clock ON clock.job = s.job AND clock.process = s.process
JOIN member AS here ON here.job = s.job AND here.comm = s.comm AND here.process = s.process
LEFT JOIN member AS peer ON peer.job = s.job AND peer.comm = s.comm AND peer.comm_rank = s.peer
LEFT JOIN communicator ON communicator.job = s.job AND communicator.comm = s.comm;
