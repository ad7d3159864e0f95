//! Tests of the inbox: who wakes the engine thread, and what comes after its end.

use std::time::Duration;

use super::*;

/// Which of the messages that come while the engine thread sleeps wake it.
fn keys_at_first_wake(wait: Wait, quiet: &[u64], loud: u64) -> Vec<u64> {
    let inbox = Inbox::default();
    std::thread::scope(|scope| {
        let taker = scope.spawn(|| {
            let mut taken = Vec::new();
            inbox.take(&mut taken, wait);
            taken
        });
        while inbox.lock().sleep == Sleep::Awake {
            std::thread::yield_now();
        }
        for &key in quiet {
            assert!(inbox.put_for_next_step(Message::Abort(key)).is_ok());
        }
        assert!(inbox.put(Message::Ping(loud)).is_ok());
        let taken = taker.join().unwrap();
        taken
            .iter()
            .map(|message| match message {
                Message::Abort(key) | Message::Ping(key) => *key,
                _ => unreachable!(),
            })
            .collect()
    })
}

#[test]
fn with_all_steps_in_flight_quiet_messages_wait_for_a_loud_one() {
    assert_eq!(keys_at_first_wake(Wait::ForStep, &[1, 2, 3], 4), [1, 2, 3, 4]);
}

#[test]
fn an_idle_engine_thread_wakes_up_for_any_message() {
    let inbox = Inbox::default();
    std::thread::scope(|scope| {
        let taker = scope.spawn(|| {
            let mut taken = Vec::new();
            inbox.take(&mut taken, Wait::ForAny);
            taken.len()
        });
        while inbox.lock().sleep == Sleep::Awake {
            std::thread::yield_now();
        }
        assert!(inbox.put_for_next_step(Message::Abort(1)).is_ok());
        assert_eq!(taker.join().unwrap(), 1);
    });
}

#[test]
fn messages_that_lie_there_are_taken_without_sleep() {
    let inbox = Inbox::default();
    assert!(inbox.put_for_next_step(Message::Abort(1)).is_ok());
    let mut taken = Vec::new();
    inbox.take(&mut taken, Wait::ForStep);
    assert_eq!(taken.len(), 1);
}

#[test]
fn when_a_step_is_to_be_planned_the_engine_thread_wakes_up_by_itself() {
    let inbox = Inbox::default();
    let mut taken = Vec::new();
    let soon = || Wait::ForStepUntil(Instant::now() + Duration::from_millis(1));
    inbox.take(&mut taken, soon());
    assert!(taken.is_empty() && inbox.lock().sleep == Sleep::Awake);
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(inbox.put_for_next_step(Message::Abort(1)).is_ok()));
        while taken.is_empty() {
            inbox.take(&mut taken, soon());
        }
    });
    assert_eq!(taken.len(), 1);
}

#[test]
fn the_end_of_a_step_comes_before_the_time_to_plan() {
    let inbox = Inbox::default();
    std::thread::scope(|scope| {
        let taker = scope.spawn(|| {
            let mut taken = Vec::new();
            let far = Instant::now() + Duration::from_secs(3600);
            inbox.take(&mut taken, Wait::ForStepUntil(far));
            taken.len()
        });
        while inbox.lock().sleep == Sleep::Awake {
            std::thread::yield_now();
        }
        assert!(inbox.put(Message::Ping(1)).is_ok());
        assert_eq!(taker.join().unwrap(), 1);
    });
}

#[test]
fn an_empty_inbox_is_left_at_once_where_there_is_other_work() {
    let inbox = Inbox::default();
    let mut taken = Vec::new();
    inbox.take(&mut taken, Wait::No);
    assert!(taken.is_empty() && inbox.lock().sleep == Sleep::Awake);
}
