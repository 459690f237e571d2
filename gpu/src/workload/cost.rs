//! Many launches, timed on the host: the cost of a launch for the calling thread, and the time
//! from the first launch to the last.

use std::time::Instant;

use super::Told;
use super::world::{Team, World};
use crate::nccl::Operation;

/// Launches in a batch, after which the host waits for the GPU.
const BATCH: u32 = 200;
/// Batches that are not counted, before those that are.
const WARM_UP: u32 = 3;

/// Runs `repeats` batches. Reports for each the time of a launch, and of a launch with its
/// execution, in ns.
pub(super) fn run(world: &mut World<'_>, team: &mut Team, told: &mut Told) -> Result<(), String> {
    team.is_known = false;
    let (mut launch, mut whole) = (Vec::new(), Vec::new());
    for batch in 0..WARM_UP + world.workload.repeats {
        let began = Instant::now();
        for _ in 0..BATCH {
            if team.comm.ranks == 1 {
                world.ring(team, 1)?;
            } else {
                world.ask(team, &[Operation::AllReduce], 1)?;
            }
        }
        let launched = began.elapsed();
        team.stream.synchronize()?;
        let done = began.elapsed();
        if batch >= WARM_UP {
            launch.push(launched.as_nanos() as f64 / f64::from(BATCH));
            whole.push(done.as_nanos() as f64 / f64::from(BATCH));
        }
    }
    told.figures.insert("launches".into(), f64::from((WARM_UP + world.workload.repeats) * BATCH));
    told.series.insert("launch_ns".into(), launch);
    told.series.insert("whole_ns".into(), whole);
    Ok(())
}
