use std::time::Duration;

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use runtime::{Session, Streams};
use tokio::time::Instant;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::{Begin, ENDS, Wanted, spoken, websocket_session};
use crate::serve::streams::remote::{Outcome, Report};
use crate::serve::streams::signs::{SETTLING, UNANSWERED};
use crate::serve::streams::websocket::Form;

/// Time that a client waits for the output of a program that writes at once.
async fn waited(version: u8, says: Option<&'static [u8]>) -> anyhow::Result<Duration> {
    let (client, server) = tokio::io::duplex(1 << 10);
    let begin: Begin = Box::new(|| {
        Box::pin(async {
            Ok(Session {
                stdin: None,
                stdout: Some(Box::pin(&b"out"[..])),
                stderr: None,
                terminal: None,
                end: Box::pin(async { Ok(0) }),
            })
        })
    });
    let form = Form {
        base64: false,
        ends: version == 5,
    };
    let wanted = Wanted {
        streams: Streams {
            stdin: true,
            stdout: true,
            stderr: false,
        },
        ..Wanted::default()
    };
    let session = websocket_session(server, form, Report::Status, wanted, begin, |_end| {
        Outcome::Exited(0, String::new())
    });
    let talk = async {
        tokio::time::sleep(UNANSWERED / 2).await;
        let start = Instant::now();
        let mut client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
        if let Some(says) = says {
            client.send(Message::Binary(Bytes::from_static(says))).await?;
        }
        while let Some(message) = client.next().await {
            if message?.into_data() == b"\x01out"[..] {
                return Ok(start.elapsed());
            }
        }
        anyhow::bail!("the output did not come")
    };
    let ((), time) = tokio::join!(session, talk);
    time
}

#[tokio::test(start_paused = true)]
async fn a_client_that_may_not_have_its_channels_yet_gets_time_to_make_them() -> anyhow::Result<()> {
    let millisecond = Duration::from_millis(1);
    let silent = waited(5, None).await?;
    assert!(silent >= SETTLING && silent <= SETTLING + millisecond, "{silent:?}");
    // A message of the client is sent on a channel that it has created.
    let speaks = waited(5, Some(b"\x00in")).await?;
    assert!(speaks <= millisecond, "{speaks:?}");
    let older = waited(4, None).await?;
    assert!(older <= millisecond, "{older:?}");
    Ok(())
}

#[test]
fn the_translator_takes_whoever_offers_its_version() {
    let of = |offered: &[&str]| spoken(&offered.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
    assert_eq!(of(&["v4.channel.k8s.io", ENDS]), Some(ENDS));
    assert_eq!(
        of(&["other", "v4.channel.k8s.io", "channel.k8s.io"]),
        Some("v4.channel.k8s.io")
    );
    assert_eq!((of(&[]), of(&["other"])), (Some(""), None));
}
