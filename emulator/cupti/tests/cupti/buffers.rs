//! Requesting, filling and returning buffers.

use std::thread;
use std::time::{Duration, Instant};

use emulated_cupti::layout::{self, kind};

use crate::alone::alone;
use crate::consumer::{self, correlations, records};
use crate::cupti;
use crate::host;

#[test]
fn a_running_kernel_holds_back_everything_launched_around_it() {
    alone("", || {
        let cupti = consumer::start(&[kind::CONCURRENT_KERNEL]);
        let [before, long, after] = [13, 14, 13].map(|stream| host::launch(host::kernel(stream)));
        host::finish(before, host::now(), 10);
        host::finish(after, host::now(), 10);
        cupti.flush(false);
        assert!(consumer::take().is_empty());
        host::finish(long, host::now(), 10);
        cupti.flush(false);
        assert_eq!(correlations(&records(cupti)), [before, long, after].map(|kernel| kernel.correlation.into()));
    });
}

#[test]
fn a_forced_flush_returns_incomplete_records_once() {
    alone("", || {
        let cupti = consumer::start(&[kind::CONCURRENT_KERNEL]);
        let [done, running] = [13, 14].map(|stream| host::launch(host::kernel(stream)));
        host::finish(done, host::now(), 10);
        cupti.flush(true);
        let records = records(cupti);
        let times: Vec<(bool, bool)> = records
            .iter()
            .map(|record| (record.get(layout::kernel::START) != 0, record.get(layout::kernel::END) != 0))
            .collect();
        assert_eq!(times, [(true, true), (false, false)]);
        host::finish(running, host::now(), 10);
        cupti.flush(true);
        assert!(consumer::take().is_empty());
        assert_eq!(cupti.dropped(), 0, "it was not dropped, it was returned");
    });
}

#[test]
fn full_buffers_come_back_by_themselves_and_on_another_thread() {
    alone("", || {
        consumer::supply(|supply| supply.most = 2);
        let cupti = consumer::start(&[kind::CONCURRENT_KERNEL]);
        for _ in 0..5 {
            host::finish(host::launch(host::kernel(13)), host::now(), 10);
        }
        let start = Instant::now();
        let mut buffers = Vec::new();
        while buffers.len() < 2 && start.elapsed() < Duration::from_secs(10) {
            buffers.extend(consumer::take());
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(buffers.len(), 2, "two are full, and the third is not");
        assert!(buffers.iter().all(|buffer| buffer.thread != thread::current().id()));
        assert!(consumer::take_requests().iter().all(|thread| *thread == thread::current().id()));
        cupti.flush(false);
        let [last] = consumer::take().try_into().expect("one was left");
        assert_eq!(last.thread, thread::current().id(), "a flush returns buffers on the thread that flushes");
        assert_eq!(consumer::read(cupti, &last).len(), 1);
    });
}

#[test]
fn threads_have_their_own_buffers_from_13_0_on() {
    for options in ["release=12.9", "release=13.0"] {
        alone(options, || {
            let cupti = consumer::start(&[kind::CONCURRENT_KERNEL]);
            for _ in 0..3 {
                thread::spawn(|| host::finish(host::launch(host::kernel(13)), host::now(), 10))
                    .join()
                    .expect("no panic");
            }
            cupti.flush(false);
            let shares_them = std::env::var("EMULATED_CUPTI").is_ok_and(|options| options.ends_with("12.9"));
            assert_eq!(consumer::take().len(), if shares_them { 1 } else { 3 });
        });
    }
}

#[test]
fn sharing_buffers_can_be_chosen() {
    alone("release=13.1", || {
        let cupti = crate::library::Cupti::emulated();
        cupti.subscribe_deaf();
        cupti.set_switch(9, 0);
        cupti.register(consumer::request, consumer::complete);
        cupti.enable(&[kind::CONCURRENT_KERNEL]);
        for _ in 0..3 {
            thread::spawn(|| host::finish(host::launch(host::kernel(13)), host::now(), 10)).join().expect("no panic");
        }
        cupti.flush(false);
        assert_eq!(consumer::take().len(), 1);
    });
}

#[test]
fn records_without_a_buffer_are_dropped_and_counted_once() {
    alone("release=12.9", || {
        consumer::supply(|supply| (supply.most, supply.left) = (2, 1));
        let cupti = consumer::start(&[kind::CONCURRENT_KERNEL]);
        for _ in 0..5 {
            host::finish(host::launch(host::kernel(13)), host::now(), 10);
        }
        cupti.flush(false);
        assert_eq!(records(cupti).len(), 2);
        assert_eq!((cupti.dropped(), cupti.dropped()), (3, 0));
        consumer::supply(|supply| supply.left = usize::MAX);
        host::finish(host::launch(host::kernel(13)), host::now(), 10);
        cupti.flush(false);
        assert_eq!((records(cupti).len(), cupti.dropped()), (1, 0), "it goes on with the next buffer");
    });
}

#[test]
fn a_buffer_too_small_for_a_record_comes_back_empty() {
    alone("", || {
        consumer::supply(|supply| supply.size = 64);
        let cupti = consumer::start(&[kind::CONCURRENT_KERNEL]);
        host::finish(host::launch(host::kernel(13)), host::now(), 10);
        cupti.flush(false);
        assert_eq!(consumer::take().iter().map(|buffer| buffer.bytes().len()).collect::<Vec<_>>(), [0]);
        assert_eq!(cupti.dropped(), 1);
    });
}

#[test]
fn cuptis_own_overhead_is_recorded() {
    for options in ["release=12.0", "release=13.5"] {
        alone(options, || {
            let cupti = consumer::start(&[kind::CONCURRENT_KERNEL, kind::OVERHEAD]);
            host::finish(host::launch(host::kernel(13)), host::now(), 10);
            // The first flush leaves a record for the second one, and the second leaves none for a
            // third.
            let mut seen = Vec::new();
            for _ in 0..3 {
                cupti.flush(false);
                let buffers = consumer::take();
                let records = buffers.iter().flat_map(|buffer| consumer::read(cupti, buffer));
                let overhead = records.filter(|record| record.kind() == kind::OVERHEAD);
                seen.push(overhead.map(|record| record.get(layout::overhead::OVERHEAD_KIND) >> 16).collect::<Vec<_>>());
            }
            let requests_are_told = std::env::var("EMULATED_CUPTI").is_ok_and(|options| options.ends_with("13.5"));
            let expected = if requests_are_told { [vec![7], vec![7, 1], vec![]] } else { [vec![], vec![1], vec![]] };
            assert_eq!(seen, expected);
        });
    }
}

#[test]
fn work_launched_before_recording_began_is_not_recorded() {
    alone("", || {
        let cupti = consumer::start(&[kind::MEMCPY]);
        let unheard = host::launch(host::kernel(13));
        cupti.enable(&[kind::CONCURRENT_KERNEL]);
        let heard = host::launch(host::kernel(13));
        assert_eq!(cupti!(cupti, cuptiActivityDisable(u32 = kind::CONCURRENT_KERNEL)), 0);
        let late = host::launch(host::kernel(13));
        for kernel in [unheard, heard, late] {
            host::finish(kernel, host::now(), 10);
        }
        cupti.flush(false);
        assert_eq!(correlations(&records(cupti)), [u64::from(heard.correlation)]);
    });
}

#[test]
fn a_machine_that_reports_only_finished_work_is_supported() {
    alone("", || {
        let cupti = consumer::start(&[kind::CONCURRENT_KERNEL]);
        let kernel = host::call(c"cuLaunchKernelEx", Some(host::KERNEL), |correlation| observe::Activity {
            correlation,
            ..host::kernel(13)
        });
        host::finish(kernel, host::now(), 10);
        cupti.flush(false);
        assert_eq!(correlations(&records(cupti)), [u64::from(kernel.correlation)]);
    });
}

#[test]
fn many_threads_launch_and_one_flushes() {
    const THREADS: u64 = 8;
    const KERNELS: u64 = 2_000;
    for options in ["", "release=12.9", "reorder,partial"] {
        alone(options, || {
            consumer::supply(|supply| supply.size = 16 << 10);
            let cupti = consumer::start(&[kind::CONCURRENT_KERNEL, kind::DRIVER, kind::OVERHEAD]);
            thread::scope(|scope| {
                let launchers: Vec<_> = (0..THREADS)
                    .map(|_| {
                        scope.spawn(|| {
                            for _ in 0..KERNELS / 100 {
                                let kernels: Vec<_> = (0..100).map(|_| host::launch(host::kernel(13))).collect();
                                for kernel in kernels {
                                    host::finish_here(kernel, host::now(), 10);
                                }
                            }
                        })
                    })
                    .collect();
                while !launchers.iter().all(thread::ScopedJoinHandle::is_finished) {
                    cupti.flush(false);
                    thread::sleep(Duration::from_millis(3));
                }
            });
            cupti.flush(true);
            let mut correlations: Vec<u64> = Vec::new();
            let mut calls = 0;
            for record in records(cupti) {
                if record.kind() == kind::CONCURRENT_KERNEL {
                    assert_ne!(record.get(layout::kernel::END), 0);
                    correlations.push(record.get(layout::kernel::CORRELATION_ID));
                } else {
                    calls += 1;
                }
            }
            correlations.sort_unstable();
            correlations.dedup();
            assert_eq!((correlations.len() as u64, calls), (THREADS * KERNELS, THREADS * KERNELS));
            assert_eq!(cupti.dropped(), 0);
        });
    }
}
