use super::*;

impl State {
    fn idle(&self) -> (usize, usize) {
        assert!(self.users.is_empty() && self.turns.is_empty(), "{self:?}");
        (self.free, self.waiting)
    }
}

#[tokio::test(start_paused = true)]
async fn places_go_round_the_users() {
    let gate = Gate::new(1);
    let first = gate.enter("noisy").await.unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = tokio::task::JoinSet::new();
    for user in ["noisy", "noisy", "noisy", "good"] {
        let (gate, order) = (Arc::clone(&gate), Arc::clone(&order));
        tasks.spawn(async move {
            let place = gate.enter(user).await.unwrap();
            order.lock().unwrap().push(user);
            drop(place);
        });
        tokio::task::yield_now().await;
    }
    drop(first);
    while tasks.join_next().await.is_some() {}
    assert_eq!(*order.lock().unwrap(), ["noisy", "good", "noisy", "noisy"]);
    assert_eq!(gate.state().idle(), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn who_goes_away_leaves_no_place_behind() {
    let gate = Gate::new(1);
    let first = gate.enter("a").await.unwrap();
    let mut gone = Box::pin(gate.enter("b"));
    let late = tokio::time::timeout(Duration::from_secs(1), gone.as_mut()).await;
    assert!(late.is_err());
    // It is given the place, and goes before it has seen that.
    drop(first);
    drop(gone);
    assert_eq!(gate.state().idle(), (1, 0));
    let first = gate.enter("a").await.unwrap();
    drop(gate.enter("b"));
    drop(first);
    assert_eq!(gate.state().idle(), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn nobody_holds_more_than_half() {
    let gate = Gate::new(4);
    let (first, second) = (gate.enter("slow").await.unwrap(), gate.enter("slow").await.unwrap());
    let mut third = std::pin::pin!(gate.enter("slow"));
    assert!(futures::FutureExt::now_or_never(third.as_mut()).is_none());
    // Others find places all the while.
    let good = [gate.enter("good").await.unwrap(), gate.enter("good").await.unwrap()];
    drop(first);
    let third = third.await.unwrap();
    drop((second, third, good));
    assert_eq!(gate.state().idle(), (4, 0));
}

#[tokio::test(start_paused = true)]
async fn full_queues_refuse() {
    let gate = Gate::new(0);
    let mut waiting = Vec::new();
    for _ in 0..QUEUED_OF_ONE {
        waiting.push(gate.state().place_or_queue(&"noisy".into()).unwrap());
    }
    assert!(gate.state().place_or_queue(&"noisy".into()).is_err());
    assert!(gate.state().place_or_queue(&"good".into()).is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_arrive_is_given_up() {
    let gates = Gates::new();
    let body = Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
    assert_eq!(gates.read("a", body).await.unwrap_err().code(), 400);
    assert_eq!(gates.bodies.free(), PIECES);
    let (bytes, room) = gates.read("a", Body::from("abc")).await.unwrap();
    assert_eq!((bytes.as_ref(), gates.bodies.free()), (&b"abc"[..], PIECES - 1));
    drop(room);
    assert_eq!(gates.bodies.free(), PIECES);
}

#[tokio::test(start_paused = true)]
async fn one_users_slow_bodies_leave_room_for_those_of_others() {
    let gates = Gates::new();
    let slow = || Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
    let slow = futures::future::join_all((0..200).map(|_| gates.read("slow", slow())));
    let mut slow = std::pin::pin!(slow);
    assert!(futures::FutureExt::now_or_never(slow.as_mut()).is_none());
    let began = tokio::time::Instant::now();
    let (bytes, room) = gates.read("good", Body::from("abc")).await.unwrap();
    assert_eq!((bytes.as_ref(), began.elapsed()), (&b"abc"[..], Duration::ZERO));
    let refused = slow.await;
    assert!(refused.iter().all(Result::is_err));
    drop((bytes, room));
    assert_eq!(gates.bodies.free(), PIECES);
}

#[tokio::test(start_paused = true)]
async fn one_users_watches_leave_room_for_those_of_others() {
    let gates = Gates::new();
    let info = RequestInfo::default();
    let mut held = Vec::new();
    while let Ok(pass) = gates.enter(&info, true, "greedy").await {
        held.push(pass);
    }
    assert_eq!(held.len(), LASTING / 2);
    assert!(gates.enter(&info, true, "good").await.is_ok());
    held.pop();
    assert!(gates.enter(&info, true, "greedy").await.is_ok());
    drop(held);
    assert_eq!((gates.lasting.free(), gates.lasting.users()), (LASTING, 0));
}
