//! Joins a session of the runtime with a client's streams.

use bytes::{Bytes, BytesMut};
use runtime::{Input, Output, Session, Size, Terminal};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::mux::{CHUNK, Sink, Source};

/// Maximum length of an incomplete terminal size.
const SIZE: usize = 1024;

/// Streams of a client.
pub(super) struct Client {
    pub(super) stdin: Option<Source>,
    pub(super) stdout: Option<Sink>,
    pub(super) stderr: Option<Sink>,
    pub(super) resize: Option<Source>,
    pub(super) error: Sink,
    /// True if the result is sent as a `Status` in JSON, and not as text after a failure.
    pub(super) statuses: bool,
}

/// Result of a session.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The program ended: its exit code and messages.
    Exited(i32, Vec<String>),
    /// Internal error with its message.
    Failed(String),
}

impl Outcome {
    fn status(&self) -> Value {
        match self {
            Self::Exited(0, _) => json!({"metadata": {}, "status": "Success"}),
            Self::Exited(code, _) => json!({
                "metadata": {},
                "status": "Failure",
                "message": self.message(),
                "reason": "NonZeroExitCode",
                "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
            }),
            Self::Failed(because) => json!({
                "metadata": {},
                "status": "Failure",
                "message": self.message(),
                "reason": "InternalError",
                "details": {"causes": [{"message": because}]},
                "code": 500,
            }),
        }
    }

    fn message(&self) -> String {
        match self {
            Self::Exited(code, words) => format!(
                "command terminated with non-zero exit code: error executing command [{}], exit code {code}",
                words.join(" ")
            ),
            Self::Failed(because) => format!("Internal error occurred: {because}"),
        }
    }

    async fn tell(&self, error: Sink, statuses: bool) {
        let text = match (statuses, self) {
            (true, _) => self.status().to_string(),
            (false, Self::Exited(0, _)) => String::new(),
            (false, Self::Exited(..) | Self::Failed(_)) => self.message(),
        };
        if !text.is_empty() && error.send(Bytes::from(text)).await.is_err() {
            return;
        }
        error.end().await;
    }
}

/// Reports to a client that there is no session.
pub(super) async fn refuse(client: Client, because: String) {
    Outcome::Failed(because).tell(client.error, client.statuses).await;
}

/// Joins both until the session ends; `outcome` converts its end into a result.
pub(super) async fn join(
    client: Client,
    session: Session,
    outcome: impl FnOnce(Result<i32, runtime::Error>) -> Outcome,
) {
    let Client {
        stdin,
        stdout,
        stderr,
        resize,
        error,
        statuses,
    } = client;
    let outputs = async {
        let ((), (), end) = tokio::join!(copy(session.stdout, stdout), copy(session.stderr, stderr), session.end);
        end
    };
    let inputs = async {
        tokio::join!(feed(stdin, session.stdin), sizes(resize, session.terminal));
        std::future::pending::<std::convert::Infallible>().await
    };
    let end = tokio::select! {
        end = outputs => end,
        never = inputs => match never {},
    };
    outcome(end).tell(error, statuses).await;
}

/// Output without a stream is discarded.
async fn copy(output: Option<Output>, sink: Option<Sink>) {
    let Some(mut output) = output else { return };
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(CHUNK);
        match output.read_buf(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        let chunk = buffer.split().freeze();
        if let Some(sink) = &sink
            && sink.send(chunk).await.is_err()
        {
            return;
        }
    }
    if let Some(sink) = sink {
        sink.end().await;
    }
}

async fn feed(source: Option<Source>, input: Option<Input>) {
    let (Some(mut source), Some(mut input)) = (source, input) else {
        return;
    };
    while let Some(chunk) = source.recv().await {
        if input.write_all(&chunk).await.is_err() {
            // The program has closed its standard input.
            return;
        }
    }
    input.shutdown().await.ok();
}

/// Terminal size of a client.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Told {
    width: u16,
    height: u16,
}

async fn sizes(source: Option<Source>, terminal: Option<Box<dyn Terminal>>) {
    let (Some(mut source), Some(terminal)) = (source, terminal) else {
        return;
    };
    let mut buffer = Vec::new();
    while let Some(chunk) = source.recv().await {
        buffer.extend_from_slice(&chunk);
        let mut sizes = serde_json::Deserializer::from_slice(&buffer).into_iter::<Told>();
        let newest = sizes.by_ref().map_while(Result::ok).last();
        let read = sizes.byte_offset();
        buffer.drain(..read);
        if buffer.len() > SIZE {
            return;
        }
        if let Some(Told { width, height }) = newest
            && let Err(error) = terminal.resize(Size { width, height }).await
        {
            tracing::debug!(%error, "a terminal keeps its size");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Outcome;

    #[test]
    fn outcomes_are_upstreams_statuses() {
        let words = || vec!["sh".to_owned(), "-c".to_owned(), "exit 3".to_owned()];
        assert_eq!(
            Outcome::Exited(0, words()).status().to_string(),
            r#"{"metadata":{},"status":"Success"}"#
        );
        let status = Outcome::Exited(3, words()).status();
        assert_eq!(
            status["message"],
            "command terminated with non-zero exit code: error executing command [sh -c exit 3], exit code 3"
        );
        assert_eq!(status["details"]["causes"][0]["message"], "3");
        let status = Outcome::Failed("no".to_owned()).status();
        assert_eq!(
            (status["message"].as_str(), status["code"].as_i64()),
            (Some("Internal error occurred: no"), Some(500))
        );
    }
}
