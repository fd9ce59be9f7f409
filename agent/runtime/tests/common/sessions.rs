//! Reading the output of sessions.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::time::Duration;

use runtime::{Session, Streams};
use tokio::io::AsyncReadExt;

pub(crate) const ALL: Streams = Streams {
    stdin: true,
    stdout: true,
    stderr: true,
};

/// Reads both outputs to their end, and the exit code.
pub(crate) async fn end(session: Session) -> (String, String, i32) {
    let Session {
        stdout, stderr, end, ..
    } = session;
    let text = async |stream: Option<runtime::Output>| {
        let mut text = String::new();
        if let Some(mut stream) = stream {
            stream.read_to_string(&mut text).await.unwrap();
        }
        text
    };
    let all = async { tokio::join!(text(stdout), text(stderr), end) };
    let (out, err, code) = tokio::time::timeout(Duration::from_mins(1), all).await.expect("no end");
    (out, err, code.unwrap())
}

/// Reads until a text has appeared.
pub(crate) async fn until(output: &mut runtime::Output, expected: &str) -> String {
    let mut seen = Vec::new();
    let reading = async {
        while !String::from_utf8_lossy(&seen).contains(expected) {
            let mut chunk = [0; 1024];
            let length = output.read(&mut chunk).await.unwrap();
            assert!(
                length > 0,
                "the end came before {expected:?}: {}",
                String::from_utf8_lossy(&seen)
            );
            seen.extend_from_slice(&chunk[..length]);
        }
    };
    let done = tokio::time::timeout(Duration::from_mins(1), reading).await;
    let text = String::from_utf8_lossy(&seen).into_owned();
    assert!(done.is_ok(), "no {expected:?} in {text:?}");
    text
}
