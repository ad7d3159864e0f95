//! Tests of the outbox: no event without a wake-up, no wake-up without an event.

use super::*;

fn event(key: u64) -> Event {
    Event { key, payload: Payload::StreamEnd }
}

fn readable(outbox: &Outbox) -> bool {
    let mut fds = [rustix::event::PollFd::new(&outbox.fd, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&rustix::event::Timespec::default())).unwrap() == 1
}

#[test]
fn test_descriptor_is_readable_exactly_while_something_waits() {
    let outbox = Outbox::new().unwrap();
    assert!(!readable(&outbox));
    outbox.publish(&mut Vec::new());
    assert!(!readable(&outbox));
    outbox.publish(&mut vec![event(1)]);
    outbox.publish(&mut vec![event(2)]);
    assert!(readable(&outbox));
    let keys: Vec<u64> = outbox.drain().iter().map(|e| e.key).collect();
    assert_eq!(keys, [1, 2]);
    assert!(!readable(&outbox));
    assert!(outbox.drain().is_empty());
    outbox.publish(&mut vec![event(3)]);
    assert!(readable(&outbox));
}

#[test]
fn test_nothing_of_a_silenced_key_comes_out() {
    let outbox = Outbox::new().unwrap();
    outbox.publish(&mut vec![event(1), event(2)]);
    outbox.silence(1);
    outbox.publish(&mut vec![event(1), event(2)]);
    assert!(outbox.drain().iter().all(|e| e.key == 2));
    outbox.forget(1);
    assert!(outbox.lock().dead.is_empty());
}

#[test]
fn test_no_event_is_left_without_a_wake_up() {
    let outbox = Outbox::new().unwrap();
    const EVENTS: u64 = 20_000;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for key in 0..EVENTS {
                outbox.publish(&mut vec![event(key)]);
            }
        });
        let mut taken = 0;
        while taken < EVENTS {
            let mut fds = [rustix::event::PollFd::new(&outbox.fd, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut fds, None).unwrap();
            for got in outbox.drain() {
                assert_eq!(got.key, taken);
                taken += 1;
            }
        }
    });
}

#[test]
fn test_a_drain_beside_an_announcement_leaves_nothing_that_no_drain_clears() {
    let outbox = Outbox::new().unwrap();
    let (asked, published) = (AtomicU64::new(0), AtomicU64::new(0));
    const ROUNDS: u64 = 20_000;
    let mut left_readable = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                while asked.load(Ordering::Acquire) < round {
                    std::thread::yield_now();
                }
                outbox.publish(&mut vec![event(round)]);
                published.store(round, Ordering::Release);
            }
        });
        for round in 1..=ROUNDS {
            asked.store(round, Ordering::Release);
            // As a client's next bytes bring them: without a look at the descriptor.
            while published.load(Ordering::Acquire) < round {
                outbox.drain();
            }
            outbox.drain();
            left_readable += u64::from(readable(&outbox));
        }
    });
    assert_eq!(left_readable, 0);
}

/// The figures of decision 0100: engines that publish 200 events each 5 ms, as with 200 streams.
#[test]
#[ignore = "figures for a document"]
#[allow(clippy::print_stdout, reason = "figures for a document")]
fn figures_of_publishing_beside_other_engines() {
    use std::time::{Duration, Instant};
    for engines in [1, 2, 4, 8] {
        let (outbox, done) = (Outbox::new().unwrap(), AtomicBool::new(false));
        let publish = |engine: u64| {
            let mut micros = Vec::new();
            for _ in 0..400 {
                std::thread::sleep(Duration::from_millis(5));
                let mut batch: Vec<Event> = (0..200).map(|i| event(engine << 8 | i)).collect();
                let began = Instant::now();
                outbox.publish(&mut batch);
                micros.push(began.elapsed().as_nanos() as f64 / 1e3);
            }
            micros
        };
        let mut micros: Vec<f64> = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    let fd = &outbox.fd;
                    let mut fds = [rustix::event::PollFd::new(fd, rustix::event::PollFlags::IN)];
                    let limit = rustix::event::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
                    rustix::event::poll(&mut fds, Some(&limit)).unwrap();
                    drop(outbox.drain());
                }
            });
            let threads: Vec<_> =
                (0..engines).map(|engine| scope.spawn(move || publish(engine))).collect();
            let all = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
            done.store(true, Ordering::Release);
            all
        });
        micros.sort_by(f64::total_cmp);
        let at = |share: f64| micros[((micros.len() - 1) as f64 * share) as usize];
        println!(
            "{engines} engines: p50 {:.1} us, p90 {:.1}, p99 {:.1}",
            at(0.5),
            at(0.9),
            at(0.99)
        );
    }
}
