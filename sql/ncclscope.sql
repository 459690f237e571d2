-- What ncclscope draws, as tables: operations, kernels, proxy operations, transfers, communicators,
-- losses.
--
-- In ui.perfetto.dev, paste this file into "Query (SQL)" and run it once; the views then stay until
-- the page is closed. With Perfetto's trace processor, it is a file of statements to run before
-- your own:
--
--   cat sql/ncclscope.sql my-question.sql > both.sql && trace_processor_shell -q both.sql job.perfetto-trace
--
-- docs/queries.md asks eleven questions with it. Times and durations are nanoseconds; `dur` is -1 if
-- something had not ended when the recording did. The views rely on the categories of events and on
-- their typed arguments, which are documented in proto/ncclscope.proto, not on the names in the
-- picture. Only the direction and the waits of a transfer are recognised by name.

-- The processes of the job. `rank` is the rank in the job, or NULL if the process does not know it.
CREATE PERFETTO VIEW nccl_process AS
SELECT
  upid,
  pid,
  name,
  iif(name GLOB 'rank [0-9]*', cast(substr(name, 6) AS INT), NULL) AS world_rank
FROM process
WHERE pid > 0;

-- All slices and instants, with their process.
CREATE PERFETTO VIEW nccl_slice AS
SELECT
  slice.id,
  slice.ts,
  slice.dur,
  slice.name,
  slice.category,
  slice.arg_set_id,
  slice.parent_id,
  slice.track_id,
  track.name AS track,
  track.parent_id AS group_id,
  thread_track.utid,
  coalesce(process_track.upid, thread.upid) AS upid
FROM slice
JOIN track ON track.id = slice.track_id
LEFT JOIN process_track ON process_track.id = slice.track_id
LEFT JOIN thread_track ON thread_track.id = slice.track_id
LEFT JOIN thread ON thread.utid = thread_track.utid;

-- The communicators, one row per process and communicator. `comm` is NCCL's hash, the same on all
-- ranks; `rank` is the rank in the communicator; `label` is its name on the tracks.
CREATE PERFETTO VIEW nccl_communicator AS
SELECT
  upid,
  extract_arg(arg_set_id, 'nccl.comm') AS comm,
  printf('%016x', extract_arg(arg_set_id, 'nccl.comm')) AS hash,
  extract_arg(arg_set_id, 'nccl.comm_name') AS name,
  coalesce(
    iif(track GLOB '* · rank *', substr(track, 1, instr(track, ' · rank ') - 1), NULL),
    extract_arg(arg_set_id, 'nccl.comm_name'),
    printf('%016x', extract_arg(arg_set_id, 'nccl.comm'))
  ) AS label,
  extract_arg(arg_set_id, 'nccl.rank') AS rank,
  extract_arg(arg_set_id, 'nccl.ranks') AS ranks,
  extract_arg(arg_set_id, 'nccl.nodes') AS hosts,
  extract_arg(arg_set_id, 'nccl.device') AS device,
  extract_arg(arg_set_id, 'nccl.nccl_version') AS nccl_version,
  extract_arg(arg_set_id, 'nccl.interface') AS interface,
  min(ts) AS ts
FROM nccl_slice
WHERE dur = 0 AND (extract_arg(arg_set_id, 'nccl.interface') IS NOT NULL OR name = 'communicator init')
-- Process groups of other tools have a name only.
GROUP BY upid, comm, rank, iif(extract_arg(arg_set_id, 'nccl.comm') IS NULL, extract_arg(arg_set_id, 'nccl.comm_name'), NULL);

-- The application's calls into NCCL, from v5 of the interface on. `nvtx` is the innermost of the
-- program's NVTX ranges around the call on its thread, if the recording has ranges
-- (NCCLSCOPE_NVTX=1); NCCL's own ranges, which repeat the call, are left out. `step` is the number
-- in the innermost range whose name ends with the number of a step or an iteration: `step 17`,
-- `Iteration: 17`, `ProfilerStep#17`. If no range of the thread does, it is the number of the other
-- threads, if they agree.
CREATE PERFETTO VIEW nccl_call AS
WITH call AS MATERIALIZED (
  SELECT * FROM nccl_slice WHERE category = 'api' AND name GLOB 'nccl*'
),
range AS MATERIALIZED (
  SELECT
    ts,
    -- A range that never ended continues.
    iif(dur < 0, (1 << 62), ts + dur) AS ts_end,
    name,
    upid,
    utid,
    iif(
      name GLOB '*[0-9]' AND (
        lower(words) GLOB '*step' OR lower(words) GLOB '*iteration'
        -- A word such as "writer" is not an iteration.
        OR lower(words) = 'iter' OR lower(words) GLOB '*[^a-z]iter' OR words GLOB '*Iter'
      ),
      cast(substr(name, length(rtrim(name, '0123456789')) + 1) AS INT),
      NULL
    ) AS step
  FROM (SELECT *, rtrim(rtrim(name, '0123456789'), ' #:=_-([') AS words FROM nccl_slice)
  WHERE category IN ('nvtx', 'pytorch') AND dur != 0 AND extract_arg(arg_set_id, 'nccl.nvtx_domain') IS NOT 'NCCL'
),
-- Of several rows, the one with the largest begin gives the other columns: the innermost range.
own AS MATERIALIZED (
  SELECT call.id, range.name AS nvtx, max(range.ts)
  FROM call JOIN range ON range.utid = call.utid AND range.ts <= call.ts AND range.ts_end >= call.ts + call.dur
  GROUP BY call.id
),
named AS MATERIALIZED (
  SELECT call.id, range.utid, range.utid = call.utid AS is_own, range.step, max(range.ts)
  FROM call JOIN range ON range.upid = call.upid AND range.ts <= call.ts AND range.ts_end > call.ts
  WHERE range.step IS NOT NULL
  GROUP BY call.id, range.utid
),
step AS MATERIALIZED (
  SELECT
    id,
    coalesce(max(iif(is_own, step, NULL)), iif(count(DISTINCT step) = 1, min(step), NULL)) AS step
  FROM named
  GROUP BY id
)
SELECT
  call.id,
  call.ts,
  call.dur,
  call.name,
  call.upid,
  extract_arg(call.arg_set_id, 'nccl.comm') AS comm,
  coalesce(extract_arg(call.arg_set_id, 'nccl.function'), extract_arg(call.arg_set_id, 'nccl.function_text')) AS function,
  extract_arg(call.arg_set_id, 'nccl.bytes') AS bytes,
  extract_arg(call.arg_set_id, 'nccl.user_tag') AS user_tag,
  own.nvtx,
  step.step
FROM call
LEFT JOIN own USING (id)
LEFT JOIN step USING (id);

-- The operations that the application asked for, as NCCL took them over, one row per rank. The rows
-- of one operation have the same `operation` on all ranks. NCCL does not number replays of graphs,
-- so these share it with each other and with operations asked for at the same time; `name` and
-- `replay` tell them apart. `bytes` is the payload: count times the size of the datatype.
CREATE PERFETTO VIEW nccl_operation AS
SELECT
  id,
  ts,
  dur,
  name,
  upid,
  extract_arg(arg_set_id, 'correlation_id') AS operation,
  extract_arg(arg_set_id, 'nccl.comm') AS comm,
  coalesce(extract_arg(arg_set_id, 'nccl.function'), extract_arg(arg_set_id, 'nccl.function_text')) AS function,
  extract_arg(arg_set_id, 'nccl.seq') AS seq,
  extract_arg(arg_set_id, 'nccl.replay') AS replay,
  extract_arg(arg_set_id, 'nccl.bytes') AS bytes,
  extract_arg(arg_set_id, 'nccl.datatype') AS datatype,
  extract_arg(arg_set_id, 'nccl.algorithm') AS algorithm,
  extract_arg(arg_set_id, 'nccl.protocol') AS protocol,
  extract_arg(arg_set_id, 'nccl.channels') AS channels,
  extract_arg(arg_set_id, 'nccl.peer') AS peer,
  extract_arg(arg_set_id, 'nccl.buffer_alignment') AS buffer_alignment,
  extract_arg(arg_set_id, 'nccl.doubt') AS doubt
FROM nccl_slice
WHERE category = 'operation' AND extract_arg(arg_set_id, 'nccl.count') IS NOT NULL;

-- The kernels of all streams. `match` says how a kernel of NCCL was matched to what it carried. It
-- is NULL for kernels of the application, and 'unmatched' if nothing shows what the kernel carried,
-- with the reason in `doubt`.
CREATE PERFETTO VIEW nccl_kernel AS
SELECT
  id,
  ts,
  dur,
  name,
  upid,
  extract_arg(arg_set_id, 'nccl.kernel') AS kernel,
  extract_arg(arg_set_id, 'nccl.match') AS match,
  extract_arg(arg_set_id, 'nccl.doubt') AS doubt,
  extract_arg(arg_set_id, 'nccl.comm') AS comm,
  extract_arg(arg_set_id, 'nccl.operations') AS operations,
  extract_arg(arg_set_id, 'nccl.device') AS device,
  extract_arg(arg_set_id, 'nccl.stream_id') AS stream,
  extract_arg(arg_set_id, 'nccl.graph') AS graph,
  extract_arg(arg_set_id, 'nccl.graph_node') AS graph_node,
  extract_arg(arg_set_id, 'nccl.replay') AS replay,
  extract_arg(arg_set_id, 'nccl.time_error_ns') AS time_error
FROM nccl_slice
WHERE category = 'kernel' AND extract_arg(arg_set_id, 'nccl.kernel') IS NOT NULL;

-- The operations while the GPU worked on them: from the begin to the end of the kernel that carried
-- them. An operation in a replayed graph has a row for each run. `algorithm_bytes` and `bus_bytes`
-- are what nccl-tests divides by the time: the whole of the data, and what each rank moves at least,
-- by which operations of different kinds and sizes can be compared with the hardware; NULL if the
-- number of ranks is not known. `operations` is how many the kernel carried, if it carried several. `proxy_wait` is how long the
-- kernel had run when the network proxy began the last of its work for the operation; NULL if it had begun before. `nvtx` and `step` are those of `nccl_call`;
-- for a replay, those around the launch of its graph.
CREATE PERFETTO VIEW nccl_execution AS
WITH execution AS (
  SELECT
    id,
    ts,
    dur,
    name,
    upid,
    extract_arg(arg_set_id, 'correlation_id') AS operation,
    extract_arg(arg_set_id, 'nccl.comm') AS comm,
    coalesce(extract_arg(arg_set_id, 'nccl.function'), extract_arg(arg_set_id, 'nccl.function_text')) AS function,
    extract_arg(arg_set_id, 'nccl.seq') AS seq,
    extract_arg(arg_set_id, 'nccl.replay') AS replay,
    extract_arg(arg_set_id, 'nccl.bytes') AS bytes,
    extract_arg(arg_set_id, 'nccl.peer') AS peer,
    extract_arg(arg_set_id, 'nccl.operations') AS operations,
    extract_arg(arg_set_id, 'nccl.proxy_wait_ns') AS proxy_wait,
    extract_arg(arg_set_id, 'nccl.nvtx_range') AS nvtx,
    extract_arg(arg_set_id, 'nccl.nvtx_step') AS step
  FROM nccl_slice
  WHERE category = 'run'
    -- If the communicator is not known, there is only the kernel. Other tools' files may state
    -- bytes and no count; copies have bytes, too.
    OR category IN ('kernel', 'carried')
    AND coalesce(extract_arg(arg_set_id, 'nccl.count'), extract_arg(arg_set_id, 'nccl.bytes')) IS NOT NULL
    AND coalesce(extract_arg(arg_set_id, 'nccl.function'), extract_arg(arg_set_id, 'nccl.function_text')) IS NOT NULL
    AND coalesce(extract_arg(arg_set_id, 'nccl.operations'), 1) = 1
    AND coalesce(extract_arg(arg_set_id, 'nccl.comm'), extract_arg(arg_set_id, 'nccl.comm_name')) IS NULL
)
SELECT
  execution.*,
  size.ranks,
  CASE
    WHEN size.ranks IS NULL THEN NULL
    WHEN function IN ('AllGather', 'ReduceScatter', 'AlltoAll', 'Gather', 'Scatter') THEN bytes * size.ranks
    ELSE bytes
  END AS algorithm_bytes,
  CASE
    WHEN size.ranks IS NULL THEN NULL
    WHEN function = 'AllReduce' THEN bytes * 2 * (size.ranks - 1) / size.ranks
    WHEN function IN ('AllGather', 'ReduceScatter', 'AlltoAll', 'Gather', 'Scatter') THEN bytes * (size.ranks - 1)
    ELSE bytes
  END AS bus_bytes
FROM execution
LEFT JOIN (SELECT comm, max(ranks) AS ranks FROM nccl_communicator GROUP BY comm) AS size USING (comm);

-- The network proxy's work on operations: one row per channel, peer and direction, from its first
-- sign of progress on. `queued` is how long it waited in the progress thread before that.
-- Operations still queued at the recording's end have one row per connection: that of the first,
-- with their number as `still_queued` and no length.
CREATE PERFETTO VIEW nccl_proxy_operation AS
SELECT
  id,
  ts,
  dur,
  name,
  upid,
  track,
  group_id,
  extract_arg(arg_set_id, 'correlation_id') AS operation,
  extract_arg(arg_set_id, 'nccl.comm') AS comm,
  extract_arg(arg_set_id, 'nccl.channel') AS channel,
  extract_arg(arg_set_id, 'nccl.peer') AS peer,
  CASE WHEN track LIKE '%receive%' THEN 'receive' WHEN track LIKE '%send%' THEN 'send' END AS direction,
  extract_arg(arg_set_id, 'nccl.transport') AS transport,
  extract_arg(arg_set_id, 'nccl.append_batch') AS batch,
  extract_arg(arg_set_id, 'nccl.steps') AS steps,
  extract_arg(arg_set_id, 'nccl.bytes') AS operation_bytes,
  extract_arg(arg_set_id, 'nccl.queued_ns') AS queued,
  extract_arg(arg_set_id, 'nccl.operations') AS still_queued,
  extract_arg(arg_set_id, 'nccl.doubt') AS doubt
FROM nccl_slice
WHERE category = 'proxy' AND extract_arg(arg_set_id, 'nccl.steps') IS NOT NULL AND parent_id IS NULL;

-- The single transfers of the proxy, with what each waited for: the GPU that fills or empties the
-- buffer, the peer that has to make room, the network, a flush. A wait that had not ended counts
-- until the recording's end.
CREATE PERFETTO VIEW nccl_step AS
WITH step AS (
  SELECT
    *,
    extract_arg(arg_set_id, 'correlation_id') AS operation,
    extract_arg(arg_set_id, 'nccl.step') AS step,
    extract_arg(arg_set_id, 'nccl.channel') AS channel,
    extract_arg(arg_set_id, 'nccl.comm') AS comm,
    extract_arg(arg_set_id, 'nccl.peer') AS peer
  FROM nccl_slice
  WHERE category = 'proxy' AND extract_arg(arg_set_id, 'nccl.step') IS NOT NULL
),
-- A transfer is drawn beside its operation, on a track whose name begins with the operation's track
-- name.
family AS (
  SELECT steps.id AS track_id, operation.comm, operation.peer, operation.direction
  FROM track AS steps
  JOIN (
    SELECT DISTINCT track, group_id, comm, peer, direction FROM nccl_proxy_operation
  ) AS operation
    ON operation.group_id = steps.parent_id AND steps.name GLOB operation.track || ' *'
  GROUP BY steps.id
),
wait AS (
  SELECT
    parent_id AS id,
    sum(iif(name LIKE 'GPU%', iif(dur < 0, trace_end() - ts, dur), 0)) AS gpu_wait,
    sum(iif(name LIKE 'peer%', iif(dur < 0, trace_end() - ts, dur), 0)) AS peer_wait,
    sum(iif(name LIKE 'network%', iif(dur < 0, trace_end() - ts, dur), 0)) AS network_wait,
    sum(iif(name LIKE 'flush%', iif(dur < 0, trace_end() - ts, dur), 0)) AS flush_wait,
    max(extract_arg(arg_set_id, 'nccl.bytes')) AS bytes
  FROM slice
  WHERE category = 'proxy' AND parent_id IS NOT NULL
  GROUP BY parent_id
)
SELECT
  step.id,
  step.ts,
  step.dur,
  step.upid,
  step.operation,
  -- If several connections share tracks, each transfer says which one it belongs to.
  coalesce(step.comm, family.comm) AS comm,
  coalesce(step.peer, family.peer) AS peer,
  family.direction,
  step.channel,
  step.step,
  wait.bytes,
  coalesce(wait.gpu_wait, 0) AS gpu_wait,
  coalesce(wait.peer_wait, 0) AS peer_wait,
  coalesce(wait.network_wait, 0) AS network_wait,
  coalesce(wait.flush_wait, 0) AS flush_wait
FROM step
LEFT JOIN wait USING (id)
LEFT JOIN family USING (track_id);

-- In a merged trace (`ncclscope merge`), where the time of each operation went: one row per rank for
-- a collective, and one for all sends and receives of a kernel, whose number is `operations` (NULL
-- for a collective). `wait` is the time until the last rank, or the last peer, had entered;
-- `transfer` is the rest, and `queued` is the time before its kernel began. `last_rank` is the rank
-- of the communicator that came last. `error` is how far off `wait` may be; if `wait` is smaller than
-- that, the hosts' clocks are not exact enough to tell. `doubt` says why the row may be wrong beyond
-- that, for instance because a rank is missing. `gpu_wait`, `peer_wait` and `network_wait` are what its
-- sends through the proxy waited for, summed over sends that overlap; NULL for replays of graphs.
CREATE PERFETTO VIEW nccl_wait AS
SELECT
  upid,
  substr(track, 1, instr(track, ' · rank ') - 1) AS label,
  cast(substr(track, instr(track, ' · rank ') + 8) AS INT) AS rank,
  extract_arg(arg_set_id, 'correlation_id') AS operation,
  ts + dur AS end_ts,
  extract_arg(arg_set_id, 'nccl.operations') AS operations,
  extract_arg(arg_set_id, 'nccl.queued_ns') AS queued,
  extract_arg(arg_set_id, 'nccl.wait_ns') AS wait,
  extract_arg(arg_set_id, 'nccl.transfer_ns') AS transfer,
  extract_arg(arg_set_id, 'nccl.gpu_wait_ns') AS gpu_wait,
  extract_arg(arg_set_id, 'nccl.peer_wait_ns') AS peer_wait,
  extract_arg(arg_set_id, 'nccl.network_wait_ns') AS network_wait,
  extract_arg(arg_set_id, 'nccl.last_rank') AS last_rank,
  extract_arg(arg_set_id, 'nccl.time_error_ns') AS error,
  extract_arg(arg_set_id, 'nccl.doubt') AS doubt
FROM nccl_slice
WHERE category = 'job' AND name = 'transfer';

-- What the recordings lost or doubt, one row per process and kind. A process without a last word
-- was killed, or is still recording.
CREATE PERFETTO VIEW nccl_loss AS
SELECT upid, substr(key, 6) AS what, int_value AS count
FROM nccl_slice
JOIN args USING (arg_set_id)
WHERE extract_arg(arg_set_id, 'nccl.recorded') IS NOT NULL
  AND int_value > 0
  AND key IN (
    'nccl.dropped', 'nccl.discarded', 'nccl.operations_left_out', 'nccl.activities_left_out', 'nccl.late', 'nccl.double_stops', 'nccl.unknown_handles', 'nccl.foreign_handles',
    'nccl.unknown_parents', 'nccl.evicted_open', 'nccl.silent_proxy_ops', 'nccl.unknown_types', 'nccl.lanes_missing',
    'nccl.panics', 'nccl.kernels_unmatched', 'nccl.kernels_contradicted', 'nccl.launches_without_kernel',
    'nccl.launches_lost', 'nccl.kernels_untimed', 'nccl.kernels_unfinished', 'nccl.activities_implausible',
    'nccl.activities_dropped', 'nccl.activities_discarded',
    'nccl.activity_buffers_discarded', 'nccl.channels_unmapped', 'nccl.channels_implausible', 'nccl.markers_unpaired',
    'nccl.external_ids_foreign', 'nccl.timer_contradictions', 'nccl.kernels_mistimed'
  )
UNION ALL
-- Other tools' processes are no recordings, nor are a process's further GPUs.
SELECT upid, 'no last word', 1
FROM nccl_slice
WHERE category = 'ncclscope'
GROUP BY upid
HAVING max(name = 'recording started') AND count(extract_arg(arg_set_id, 'nccl.recorded')) = 0;
