//! The whole module against a made-up CUPTI.

mod fake;
mod launches;
mod ownership;
mod records;

use std::ffi::CString;

use cupti_sys::records::{Field, Table, Value, Walker};
use cupti_sys::table;

use self::fake::{api, fake};
use super::clock::Reading;
use super::decode::{Counts, Outside};
use super::intake::{Intake, Standing};
use super::*;
use crate::model::activity::Activity;
use crate::record::recorder;
use crate::sys;

fn options() -> Options {
    // Flushes only on request.
    Options { flush_period: Duration::from_secs(3600), pool_bytes: 2 << 20, ..Options::new(config::Cupti::Auto) }
}

/// A reader, and the result of what it hands over.
struct Drained {
    reader: Reader,
    intake: Intake,
}

/// Feeds an intake.
struct Into<'i>(&'i mut Intake, &'i mut Vec<Activity>);

impl Taker for Into<'_> {
    fn reading(&mut self, reading: &Reading) {
        self.0.learn(reading);
    }

    fn covers(&self, until: HostNs) -> bool {
        self.0.covers(until)
    }

    fn buffer(&mut self, now: HostNs, bytes: &[u8], walker: impl Walker, outside: &mut impl Outside) {
        self.0.decode(now, bytes, walker, outside, &mut |activity| self.1.push(activity));
    }

    fn gives_up(&mut self, _: HostNs, _: bool) {}

    fn stands(&mut self, standing: Standing) {
        self.0.stands(standing, &mut |activity| self.1.push(activity));
    }
}

impl Drained {
    fn drain(&mut self) -> Vec<Activity> {
        let mut seen = Vec::new();
        if recorder::has_brackets() {
            self.intake.expect_external_ids();
        }
        self.reader.drain(&mut Into(&mut self.intake, &mut seen));
        seen
    }

    /// Has CUPTI return records.
    fn flushed(&mut self, cupti: &Cupti, records: Vec<u8>) -> Vec<Activity> {
        fake(|fake| fake.records = records);
        assert!(cupti.sync(Duration::from_secs(10)));
        self.drain()
    }

    fn counts(&self) -> Counts {
        self.intake.counts().0
    }

    fn standing(&self) -> Standing {
        self.intake.counts().1
    }

    fn take_notes(&mut self) -> Vec<Note> {
        self.intake.take_notes()
    }
}

fn start(options: &Options) -> Result<(Cupti, Drained), Absent> {
    let (cupti, reader) = start_with(api(), "libcupti.so.13".into(), Vec::new(), options)?;
    let intake = Intake::new(reader.source());
    Ok((cupti, Drained { reader, intake }))
}

#[track_caller]
fn refused(options: &Options) -> Absent {
    start(options).err().expect("refused")
}

fn calls() -> Vec<String> {
    fake(|fake| std::mem::take(&mut fake.calls))
}

/// A record of a kind, as this version writes it.
struct Written {
    bytes: Vec<u8>,
}

impl Written {
    fn new(version: u32, kind: u32) -> Written {
        let mut bytes = vec![0; Table::new(version).size(kind).unwrap()];
        bytes[..4].copy_from_slice(&kind.to_ne_bytes());
        Written { bytes }
    }

    fn with<F, T: Value>(mut self, field: Field<F, T>, value: &[u8]) -> Written {
        self.bytes[field.offset()..][..value.len()].copy_from_slice(value);
        self
    }
}

fn kernel(version: u32, correlation: u32, start: u64, end: u64, name: &CString) -> Vec<u8> {
    type Of = table::Kernel;
    Written::new(version, cupti::CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)
        .with(Of::START, &start.to_ne_bytes())
        .with(Of::END, &end.to_ne_bytes())
        .with(Of::CORRELATION_ID, &correlation.to_ne_bytes())
        .with(Of::DEVICE_ID, &3_u32.to_ne_bytes())
        .with(Of::CONTEXT_ID, &1_u32.to_ne_bytes())
        .with(Of::STREAM_ID, &7_u32.to_ne_bytes())
        .with(Of::GRID_X, &24_i32.to_ne_bytes())
        .with(Of::GRID_Y, &1_i32.to_ne_bytes())
        .with(Of::GRID_Z, &1_i32.to_ne_bytes())
        .with(Of::BLOCK_X, &640_i32.to_ne_bytes())
        .with(Of::GRAPH_NODE_ID, &0x9_0000_0002_u64.to_ne_bytes())
        .with(Of::GRAPH_ID, &9_u32.to_ne_bytes())
        .with(Of::NAME, &(name.as_ptr().expose_provenance()).to_ne_bytes())
        .bytes
}
