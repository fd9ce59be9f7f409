use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::{ID, Location, Opened, PAIRS, Sink, pairs, port, ports};
use crate::serve::streams::mux::{Outgoing, QUEUE};

#[test]
fn ports_are_read_as_upstream_does() {
    assert_eq!(ports("port=80&port=443,8080"), Ok(vec![80, 443, 8080]));
    assert_eq!(ports(""), Err("query parameter \"port\" is required".to_owned()));
    assert_eq!(
        ports("port="),
        Err("query parameter \"port\" cannot be empty".to_owned())
    );
    assert_eq!(port("0"), Err("port \"0\" must be > 0".to_owned()));
    for (text, because) in [
        ("65536", "value out of range"),
        ("x", "invalid syntax"),
        ("+80", "invalid syntax"),
    ] {
        let because = format!("unable to parse {text:?} as a port: strconv.ParseUint: parsing {text:?}: {because}");
        assert_eq!(port(text), Err(because));
    }
}

/// Opens a stream as a client; returns the sender of its bytes.
fn half(id: u32, kind: &str, of: &str, queue: &mpsc::Sender<Outgoing>) -> (mpsc::Sender<Bytes>, Opened) {
    let headers = [("streamtype", kind), ("requestid", of), ("port", "1")];
    let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let (sender, source) = mpsc::channel(QUEUE);
    let sink = Sink {
        id,
        queue: queue.clone(),
    };
    let opened = Opened {
        headers: headers.into(),
        source,
        sink,
    };
    (sender, opened)
}

#[tokio::test]
async fn attack_halves_of_pairs_are_kept_up_to_a_limit() {
    let (queue, mut outgoing) = mpsc::channel(4 * PAIRS);
    let (client, opened) = mpsc::channel(QUEUE);
    let location = Arc::new(Location {
        sandbox: "s".to_owned(),
        netns: None,
        address: None,
    });
    let talk = async {
        let mut id = 1;
        let long = "x".repeat(ID + 1);
        let mut names = vec![long];
        names.extend((0..2 * PAIRS).map(|number| number.to_string()));
        let mut streams = Vec::new();
        for name in &names {
            let (sender, stream) = half(id, "data", name, &queue);
            client.send(stream).await.unwrap();
            streams.push(sender);
            id += 2;
        }
        // Rejected streams are forgotten at once.
        for _ in 0..=PAIRS {
            let said = outgoing.recv().await;
            assert!(matches!(said, Some(Outgoing::Frame(_))), "{said:?}");
        }
        let kept: Vec<bool> = streams.iter().map(|stream| !stream.is_closed()).collect();
        let wanted: Vec<bool> = (0..=2 * PAIRS).map(|index| (1..=PAIRS).contains(&index)).collect();
        assert_eq!(kept, wanted);
        // The other half of a waiting pair is accepted. The port has no listener.
        let (_sender, stream) = half(id, "error", "0", &queue);
        client.send(stream).await.unwrap();
        let said = outgoing.recv().await;
        assert!(
            matches!(said, Some(Outgoing::Data(stream, _)) if stream == id),
            "{said:?}"
        );
        drop(client);
    };
    tokio::join!(pairs(opened, location), talk);
}
