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
    pub(super) report: Report,
}

/// Form in which a client gets the result.
#[derive(Clone, Copy, Debug)]
pub(super) enum Report {
    /// Text, after a failure alone.
    Text,
    /// `Status` in JSON.
    Status,
    /// The `Status` that the kubelet makes of a runtime's where it translates between SPDY and
    /// version 5 of the protocol over WebSocket
    /// (`staging/src/k8s.io/apiserver/pkg/util/proxy/streamtranslator.go`).
    Translated,
}

/// Result of a session.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The program ended: its exit code, and how a failure is told.
    Exited(i32, String),
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
            Self::Exited(_, because) => format!("command terminated with non-zero exit code: {because}"),
            Self::Failed(because) => format!("Internal error occurred: {because}"),
        }
    }

    fn translated(self) -> Self {
        match self {
            Self::Exited(code, _) => Self::Exited(code, format!("command terminated with exit code {code}")),
            Self::Failed(_) => Self::Failed(self.message()),
        }
    }

    async fn tell(self, error: Sink, report: Report) {
        let text = match (report, self) {
            (Report::Text, Self::Exited(0, _)) => String::new(),
            (Report::Text, outcome) => outcome.message(),
            (Report::Status, outcome) => outcome.status().to_string(),
            (Report::Translated, outcome) => outcome.translated().status().to_string(),
        };
        if !text.is_empty() && error.send(Bytes::from(text)).await.is_err() {
            return;
        }
        error.end().await;
    }
}

/// Reports to a client that there is no session.
pub(super) async fn refuse(client: Client, because: String) {
    Outcome::Failed(because).tell(client.error, client.report).await;
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
        report,
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
    outcome(end).tell(error, report).await;
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
        let of = |code| Outcome::Exited(code, "error executing command [sh -c exit 3], exit code 3".to_owned());
        let success = r#"{"metadata":{},"status":"Success"}"#;
        assert_eq!(of(0).status().to_string(), success);
        assert_eq!(of(0).translated().status().to_string(), success);
        let status = of(3).status();
        assert_eq!(
            status["message"],
            "command terminated with non-zero exit code: error executing command [sh -c exit 3], exit code 3"
        );
        let translated = of(3).translated().status();
        assert_eq!(
            translated["message"],
            "command terminated with non-zero exit code: command terminated with exit code 3"
        );
        assert_eq!(translated["details"], status["details"]);
        assert_eq!(status["details"]["causes"][0]["message"], "3");
        let status = Outcome::Failed("no".to_owned()).status();
        assert_eq!(
            (status["message"].as_str(), status["code"].as_i64()),
            (Some("Internal error occurred: no"), Some(500))
        );
        let status = Outcome::Failed("no".to_owned()).translated().status();
        assert_eq!(
            status["message"],
            "Internal error occurred: Internal error occurred: no"
        );
        assert_eq!(status["details"]["causes"][0]["message"], "Internal error occurred: no");
    }
}
