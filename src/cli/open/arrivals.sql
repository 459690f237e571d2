-- For each operation, the time from the first rank that began it to the last one, and which rank
-- that was. Operations of one kernel count as one. A long time points to a straggler, or means that
-- the hosts' clocks were not merged. NCCL does not number replays of graphs, so they share the
-- number of an operation: the same one is the nth of its name in the same replay.
WITH o AS (
  SELECT s.ts, s.name, substr(p.name, 1, instr(p.name || ' · ', ' · ') - 1) AS who, upid,
    extract_arg(s.arg_set_id, 'correlation_id') AS id, extract_arg(s.arg_set_id, 'nccl.seq') AS seq,
    extract_arg(s.arg_set_id, 'nccl.replay') AS replay
  FROM slice s JOIN process_track t ON s.track_id = t.id JOIN process p USING (upid)
  WHERE s.category = 'CATEGORY'
),
n AS (SELECT *, row_number() OVER (PARTITION BY upid, id, replay, name ORDER BY ts) AS nth FROM o WHERE seq IS NOT NULL),
l AS (
  SELECT min(ts) OVER w AS first, ts, name, who, row_number() OVER (w ORDER BY ts DESC) AS place, count() OVER w AS ranks
  FROM n WINDOW w AS (PARTITION BY id, replay, name, nth)
),
d AS (
  SELECT first, ts - first AS late, min(name) || iif(count() > 1, ' and ' || (count() - 1) || ' more', '') AS name, who
  FROM l WHERE place = 1 AND ranks > 1 GROUP BY first, ts, who
)
SELECT first AS ts, late AS dur,
  who || ' last, by ' || iif(late < 1000000, printf('%.0f us', late / 1e3), printf('%.1f ms', late / 1e6)) || ' · ' || name AS name
FROM d
