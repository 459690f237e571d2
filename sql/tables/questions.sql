-- The eleven questions of docs/queries.md, in standard SQL over the tables of `ncclscope export`: run
-- duckdb.sql or spark.sql, and views.sql, first. DuckDB and Spark give the same rows.
--
-- For one job of many, add a condition on `job`; for an hour, on `begin` in the tables.

-- 1. Who comes late?
--
-- How long after the first rank of a collective did each of the others begin, how far off is that,
-- and how often was it the last beyond doubt? `unknown` collectives have no clock that relates the
-- rank to the others.
SELECT
  job,
  rank,
  min(host) AS host,
  count(*) AS operations,
  median(late_ns) / 1e3 AS late_us,
  median(late_error_ns) / 1e3 AS error_us,
  max(late_ns) / 1e3 AS most_us,
  sum(CASE WHEN from_last = 1 AND came_ns IS NOT NULL THEN 1 ELSE 0 END) AS times_last,
  sum(CASE WHEN from_last = 1 AND present = timed AND after_ns > error_ns + error_before_ns THEN 1 ELSE 0 END) AS times_last_surely,
  sum(CASE WHEN came_ns IS NULL THEN 1 ELSE 0 END) AS unknown
FROM lateness
WHERE present > 1
GROUP BY job, rank
ORDER BY late_us DESC, rank;

-- 2. Which link is slow?
--
-- How fast did the network take each rank's data, per peer, at its best? The fastest tenth is left
-- out: a thread that was held up may note that data was sent after most of it had gone.
-- `times_slower` compares with the median of all links; `best_error` is how far the best may be off,
-- as a share of it.
WITH sent AS (
  SELECT *, bytes * 1e3 / network_wait_ns AS mb_per_s
  FROM (
    SELECT *, max(bytes) OVER (PARTITION BY job, rank, comm, peer, direction) AS largest FROM transfer
  ) AS t
  WHERE direction = 'send' AND network_wait_ns > 0 AND 2 * bytes >= largest
),
ranked AS (
  SELECT *, CASE WHEN 10 * place > transfers THEN mb_per_s END AS good_mb_per_s
  FROM (
    SELECT
      *,
      row_number() OVER (PARTITION BY job, rank, host, peer_rank, peer_host, label, peer ORDER BY mb_per_s DESC) AS place,
      count(*) OVER (PARTITION BY job, rank, host, peer_rank, peer_host, label, peer) AS transfers
    FROM sent
  ) AS t
),
link AS (
  SELECT
    job, rank, host, peer_rank, peer_host, label, peer,
    count(*) AS transfers,
    max(good_mb_per_s) AS best_mb_per_s,
    max_by(error_ns, good_mb_per_s) * 1e0 / max_by(network_wait_ns, good_mb_per_s) AS best_error,
    median(network_wait_ns) / 1e3 AS median_us,
    max(network_wait_ns) / 1e3 AS longest_us
  FROM ranked
  GROUP BY job, rank, host, peer_rank, peer_host, label, peer
),
typical AS (SELECT job, median(best_mb_per_s) AS typical_mb_per_s FROM link GROUP BY job)
SELECT link.*, typical_mb_per_s / best_mb_per_s AS times_slower
FROM link
JOIN typical ON typical.job = link.job
ORDER BY times_slower DESC, rank, label, peer;

-- 3. What does the proxy wait for: GPU, peer, network?
SELECT
  job, rank, label, direction, peer, peer_rank,
  round(1e2 * sum(gpu_wait_ns) / sum(waited)) AS gpu_percent,
  round(1e2 * sum(peer_wait_ns) / sum(waited)) AS peer_percent,
  round(1e2 * sum(network_wait_ns) / sum(waited)) AS network_percent,
  round(1e2 * sum(flush_wait_ns) / sum(waited)) AS flush_percent
FROM (SELECT *, gpu_wait_ns + peer_wait_ns + network_wait_ns + flush_wait_ns AS waited FROM transfer) AS t
WHERE waited > 0
GROUP BY job, rank, label, direction, peer, peer_rank
ORDER BY job, rank, label, direction, peer;

-- 4. Is the GPU waiting for the host?
SELECT
  job, rank, device,
  1e2 * sum(gap) / (max(end_ns) - min(begin_ns)) AS idle_percent,
  max(gap) / 1e3 AS longest_us
FROM (
  SELECT *, greatest(0, begin_ns - coalesce(lag(until_ns) OVER same, begin_ns)) AS gap
  FROM (
    SELECT *, max(end_ns) OVER (PARTITION BY job, process, device ORDER BY begin_ns ROWS UNBOUNDED PRECEDING) AS until_ns
    FROM (
      SELECT job, CAST(rank AS INT) AS rank, process, device, ns(begin) AS begin_ns, ns(begin) + duration_ns AS end_ns
      FROM kernels
      WHERE duration_ns IS NOT NULL
    ) AS k
  ) AS u
  WINDOW same AS (PARTITION BY job, process, device ORDER BY begin_ns)
) AS g
GROUP BY job, rank, device
HAVING max(end_ns) > min(begin_ns)
ORDER BY idle_percent DESC, rank;

-- 5. Which kernels are unmatched, and why?
SELECT job, matched_by, doubt, kernel, count(*) AS kernels, sum(duration_ns) / 1e3 AS us
FROM kernels
WHERE matched_by = 'unmatched' OR matched_by LIKE 'inferred%' OR (matched_by IS NOT NULL AND doubt IS NOT NULL)
GROUP BY job, matched_by, doubt, kernel
ORDER BY kernels DESC, matched_by, doubt, kernel;

-- 6. What was lost?
SELECT job, CAST(rank AS INT) AS rank, what, number
FROM losses
ORDER BY number DESC, what, rank;

-- 7. Which operations are the largest?
SELECT
  job, label, function, bytes,
  count(*) AS times,
  min(duration_ns) / 1e3 AS shortest_us,
  avg(duration_ns) / 1e3 AS average_us,
  max(duration_ns) / 1e3 AS longest_us
FROM execution
WHERE duration_ns IS NOT NULL
GROUP BY job, comm, label, function, bytes
ORDER BY bytes DESC, times DESC, label, function
LIMIT 20;

-- 8. What bandwidth does each communicator reach?
SELECT
  job, label, function, ranks,
  count(*) AS executions,
  sum(algorithm_bytes) * 1e0 / sum(duration_ns) AS algorithm_gb_per_s,
  sum(bus_bytes) * 1e0 / sum(duration_ns) AS bus_gb_per_s
FROM execution
WHERE duration_ns > 0
GROUP BY job, comm, label, function, ranks
ORDER BY sum(duration_ns) DESC, label, function;

-- 9. How long do replays of a graph take?
SELECT
  job, rank, graph,
  count(*) AS replays,
  sum(kernels) AS kernels,
  avg(span_ns) / 1e3 AS average_us,
  max(span_ns) / 1e3 AS longest_us
FROM (
  SELECT
    job, CAST(rank AS INT) AS rank, process, graph, replay,
    count(*) AS kernels,
    max(ns(begin) + duration_ns) - min(ns(begin)) AS span_ns
  FROM kernels
  WHERE graph IS NOT NULL AND replay IS NOT NULL AND duration_ns IS NOT NULL
  GROUP BY job, CAST(rank AS INT), process, graph, replay
) AS r
GROUP BY job, rank, process, graph
ORDER BY job, rank, graph;

-- 10. Which operation hangs, and who is missing?
--
-- Collectives that some ranks of a communicator were handed and others were not, one row for each
-- missing rank. Ranks without a table do not count: nothing is known of them.
SELECT wanted.job, wanted.label, wanted.function, wanted.bytes, wanted.seq, wanted.replay, member.comm_rank AS missing_rank, member.rank
FROM (
  SELECT DISTINCT o.job, o.comm, communicator.label, o.operation, o.function, o.bytes, o.datatype, o.seq, coalesce(o.replay, 0) AS replay
  FROM operations AS o
  JOIN communicator ON communicator.job = o.job AND communicator.comm = o.comm
  WHERE o.seq IS NOT NULL AND o.operation IS NOT NULL
) AS wanted
JOIN member ON member.job = wanted.job AND member.comm = wanted.comm
LEFT JOIN operations AS theirs
  ON theirs.job = wanted.job AND theirs.comm = wanted.comm AND theirs.operation = wanted.operation
  AND theirs.function = wanted.function AND coalesce(theirs.replay, 0) = wanted.replay AND theirs.process = member.process
WHERE theirs.process IS NULL
ORDER BY wanted.seq, wanted.replay, wanted.label, missing_rank;

-- Transfers that were not over when the recording ended.
SELECT job, rank, direction, peer, peer_rank, channel, step, gpu_wait_ns / 1e6 AS gpu_ms, network_wait_ns / 1e6 AS network_ms
FROM transfer
WHERE duration_ns IS NULL
ORDER BY job, rank, step DESC, channel, peer, direction;

-- 11. Which operations wait for the proxy, and for whom?
--
-- How long had their kernels run when the proxy began the last of its work for them, what did it do
-- meanwhile, and for which peer was that work? The last is that of the channel whose first transfer
-- came last, and how that peer is reached.
WITH waiting AS (
  SELECT o.job, o.process, o.comm, o.operation, o.replay, o.function, o.bytes, o.begin, o.proxy_wait_ns, o.proxy_wait_reason,
    s.direction, s.peer, min(ns(s.begin)) AS first_ns
  FROM operations AS o
  LEFT JOIN proxy_steps AS s
    ON s.job = o.job AND s.process = o.process AND s.comm = o.comm AND s.operation = o.operation
    AND ns(s.begin) >= ns(o.begin) AND ns(s.begin) <= ns(o.begin) + o.duration_ns
  WHERE o.proxy_wait_ns IS NOT NULL
  GROUP BY o.job, o.process, o.comm, o.operation, o.replay, o.function, o.bytes, o.begin, o.proxy_wait_ns, o.proxy_wait_reason,
    s.direction, s.peer, s.channel
),
waited AS (
  SELECT *, row_number() OVER (
    PARTITION BY job, process, comm, operation, replay, function, bytes, begin ORDER BY first_ns DESC, peer, direction
  ) AS from_last
  FROM waiting
)
SELECT
  waited.job, clock.rank, communicator.label, waited.function, waited.bytes,
  waited.proxy_wait_reason AS reason, waited.direction, waited.peer, peers.transport,
  count(*) AS operations,
  sum(waited.proxy_wait_ns) / 1e3 AS us,
  max(waited.proxy_wait_ns) / 1e3 AS longest_us
FROM waited
JOIN clock ON clock.job = waited.job AND clock.process = waited.process
LEFT JOIN communicator ON communicator.job = waited.job AND communicator.comm = waited.comm
LEFT JOIN peers
  ON peers.job = waited.job AND peers.process = waited.process AND peers.comm = waited.comm AND peers.peer = waited.peer
WHERE waited.from_last = 1
GROUP BY waited.job, clock.rank, waited.comm, communicator.label, waited.function, waited.bytes,
  waited.proxy_wait_reason, waited.direction, waited.peer, peers.transport
ORDER BY us DESC, rank, label, function, bytes;
