#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking"
)]

use super::numbers::Limits;
use super::seats::{Waiting, Wanted};
use super::*;

fn level(name: &str, [nominal, lower, upper]: [usize; 3], queues: usize) -> Wanted {
    Wanted {
        name: name.to_owned(),
        limits: Limits { nominal, lower, upper },
        queues,
        hand: queues.min(2),
        longest: 3,
    }
}

fn seats<const N: usize>(levels: [Wanted; N]) -> (Arc<Seats>, Vec<usize>) {
    let seats = Arc::new(Seats::default());
    let places = seats.divide(levels.into());
    (seats, places)
}

fn seated(start: Start) -> Seat {
    match start {
        Start::Seated(seat) => seat,
        other => panic!("{other:?}"),
    }
}

fn waiting(start: Start) -> Waiting {
    match start {
        Start::Waiting(waiting) => waiting,
        other => panic!("{other:?}"),
    }
}

/// The seat that it has been given already.
fn now(waiting: Waiting) -> Option<Seat> {
    futures::FutureExt::now_or_never(waiting.seat()).flatten()
}

fn refused(start: Start) -> Rejection {
    match start {
        Start::Refused(why) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn flows_take_turns() {
    // The two flows have disjoint hands of two of the 64 queues.
    let (noisy, good) = (0, 17);
    let (seats, places) = seats([level("a", [1, 1, 1], 64)]);
    let first = seated(seats.start(places[0], noisy, false));
    let mut order = tokio::task::JoinSet::new();
    let served = Arc::new(std::sync::Mutex::new(Vec::new()));
    for flow in [noisy, noisy, noisy, noisy, good] {
        let waiting = waiting(seats.start(places[0], flow, false));
        let served = Arc::clone(&served);
        order.spawn(async move {
            let seat = waiting.seat().await.unwrap();
            served.lock().unwrap().push(flow);
            drop(seat);
        });
        tokio::task::yield_now().await;
    }
    drop(first);
    while order.join_next().await.is_some() {}
    let place = served.lock().unwrap().iter().position(|flow| *flow == good);
    assert_eq!(place, Some(2), "{served:?}");
    assert!(seats.is_idle());
}

#[tokio::test(start_paused = true)]
async fn who_goes_away_leaves_no_seat_behind() {
    let (seats, places) = seats([level("a", [1, 1, 1], 1)]);
    let start = || seats.start(places[0], 0, false);
    let first = seated(start());
    let late = tokio::time::timeout(Duration::from_secs(1), waiting(start()).seat()).await;
    assert!(late.is_err());
    let given = waiting(start());
    // The request gets the seat, and is dropped before it has seen that.
    drop(first);
    drop(given);
    assert!(seats.is_idle());
    let first = seated(start());
    drop(waiting(start()));
    drop(first);
    assert!(seats.is_idle());
}

#[test]
fn no_flow_takes_more_than_half_where_flows_are_told_apart() {
    let (seats, places) = seats([level("a", [4, 4, 4], 8)]);
    let (slow, good) = (0, u64::MAX);
    let held = [(); 2].map(|()| seated(seats.start(places[0], slow, true)));
    let third = waiting(seats.start(places[0], slow, true));
    // The requests queued before them cannot run.
    let others = [(); 2].map(|()| now(waiting(seats.start(places[0], good, true))).unwrap());
    drop((held, third, others));
    assert!(seats.is_idle());
    let all = [(); 4].map(|()| seated(seats.start(places[0], slow, false)));
    drop(all);
}

#[test]
fn full_queues_and_levels_without_queues_refuse() {
    let (seats, places) = seats([level("queue", [1, 1, 1], 1), level("reject", [1, 1, 1], 0)]);
    let start = |place: usize| seats.start(places[place], 0, false);
    let held = (seated(start(0)), seated(start(1)));
    let queued = [(); 3].map(|()| waiting(start(0)));
    assert_eq!(refused(start(0)), Rejection::QueueFull);
    assert_eq!(refused(start(1)), Rejection::ConcurrencyLimit);
    drop((held, queued));
    assert!(seats.is_idle());
}

#[test]
fn levels_lend_what_they_do_not_use_and_get_it_back_first() {
    let lender = || level("lender", [4, 1, 4], 1);
    let (seats, places) = seats([lender(), level("borrower", [2, 2, 8], 1)]);
    let lender_starts = || seats.start(places[0], 0, false);
    let borrower_starts = || seats.start(places[1], 0, false);
    let mut borrowed: Vec<Seat> = (0..5).map(|_| seated(borrower_starts())).collect();
    let sixth = waiting(borrower_starts());
    let own = seated(lender_starts());
    let second = waiting(lender_starts());
    drop(borrowed.pop());
    let second = now(second).expect("the lender goes first");
    // A removed level keeps its seats until it is drained, and its waiting requests are served.
    assert_eq!(seats.divide(vec![lender()]), [places[0]]);
    drop((own, second, borrowed));
    drop(now(sixth).expect("a seat"));
    assert!(seats.is_idle());
    assert_eq!(
        seats.divide(vec![level("another", [1, 1, 1], 1), lender()]),
        [places[1], places[0]]
    );
}

#[test]
fn queues_are_shown_in_columns() {
    let (seats, places) = seats([level("short", [1, 1, 1], 1), level("reject", [1, 1, 1], 0)]);
    let held = [0, 1].map(|place| seated(seats.start(places[place], 0, false)));
    let waits = [(); 2].map(|()| waiting(seats.start(places[0], 0, false)));
    let expected = "\
PriorityLevelName, Index,  PendingRequests, ExecutingRequests, SeatsInUse, NextDispatchR, InitialSeatsSum, MaxSeatsSum, TotalWorkSum
short,             0,      2,               1,                 1,          -,             2,               2,           -
";
    assert_eq!(dump::queues(&seats.used()), expected);
    drop((held, waits));
}

#[test]
fn attack_a_level_of_ten_million_queues_keeps_those_that_are_used() {
    let (seats, places) = seats([level("vast", [2, 2, 2], 10_000_000)]);
    assert_eq!(seats.queues(), 0);
    let held = [0, u64::MAX].map(|flow| seated(seats.start(places[0], flow, false)));
    let waits: Vec<Waiting> = (1..=100)
        .map(|flow| waiting(seats.start(places[0], flow * 1_000_003, false)))
        .collect();
    assert_eq!(seats.queues(), 102);
    drop(held);
    let left: Vec<Seat> = waits.into_iter().filter_map(now).collect();
    assert_eq!((left.len(), seats.queues()), (2, 2), "those that gave up leave nothing");
    drop(left);
    assert!(seats.is_idle());
}
