use super::*;

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_arrive_is_given_up() {
    let limits = ResourceLimits::new();
    let body = Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
    assert_eq!(limits.read("a", body).await.unwrap_err().code(), 400);
    assert_eq!(limits.bodies.free(), PIECES);
    let (bytes, room) = limits.read("a", Body::from("abc")).await.unwrap();
    assert_eq!((bytes.as_ref(), limits.bodies.free()), (&b"abc"[..], PIECES - 1));
    drop(room);
    assert_eq!(limits.bodies.free(), PIECES);
}

#[tokio::test(start_paused = true)]
async fn one_users_slow_bodies_leave_room_for_those_of_others() {
    let limits = ResourceLimits::new();
    let slow = || Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
    let slow = futures::future::join_all((0..200).map(|_| limits.read("slow", slow())));
    let mut slow = std::pin::pin!(slow);
    assert!(futures::FutureExt::now_or_never(slow.as_mut()).is_none());
    let began = tokio::time::Instant::now();
    let (bytes, room) = limits.read("good", Body::from("abc")).await.unwrap();
    assert_eq!((bytes.as_ref(), began.elapsed()), (&b"abc"[..], Duration::ZERO));
    let refused = slow.await;
    assert!(refused.iter().all(Result::is_err));
    drop((bytes, room));
    assert_eq!(limits.bodies.free(), PIECES);
}

#[tokio::test(start_paused = true)]
async fn attack_bodies_of_eight_users_leave_room_for_those_of_others() {
    let limits = ResourceLimits::new();
    let names: Vec<String> = (0..8).map(|number| format!("slow-{number}")).collect();
    let slow = || Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
    let slow = (0..400).flat_map(|_| &names).map(|name| limits.read(name, slow()));
    let mut slow = std::pin::pin!(futures::future::join_all(slow));
    assert!(futures::FutureExt::now_or_never(slow.as_mut()).is_none());
    let began = tokio::time::Instant::now();
    assert!(limits.read("good", Body::from(vec![0; body::LIMIT])).await.is_ok());
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_handed_on_begins_with_what_has_arrived() {
    use http_body_util::BodyExt as _;
    let limits = ResourceLimits::new();
    let whole = |count: usize| {
        let pieces = (0..count).map(|_| Ok::<_, std::io::Error>(Bytes::from(vec![b'x'; body::LIMIT / 4])));
        Body::from_stream(futures::stream::iter(pieces))
    };
    for (count, is_whole) in [(0, true), (4, true), (5, false), (9, false)] {
        let (begun, _room) = limits.begin("a", whole(count)).await.unwrap();
        assert_eq!(begun.is_whole, is_whole, "{count}");
        let bytes = begun.body.collect().await.unwrap().to_bytes();
        assert_eq!(bytes.len(), count * (body::LIMIT / 4));
    }
}

#[tokio::test(start_paused = true)]
async fn one_users_watches_leave_room_for_those_of_others() {
    let limits = ResourceLimits::new();
    let mut held = Vec::new();
    while let Ok(pass) = limits.enter("greedy") {
        held.push(pass);
    }
    assert_eq!(held.len(), LASTING / 2);
    assert!(limits.enter("good").is_ok());
    held.pop();
    assert!(limits.enter("greedy").is_ok());
    drop(held);
    assert_eq!((limits.lasting.free(), limits.lasting.users()), (LASTING, 0));
}
