//! `skiff exec` and `skiff attach`.

use std::future::Future;
use std::io::IsTerminal as _;
use std::process::ExitCode;

use anyhow::bail;
use futures::SinkExt as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::{AttachParams, AttachedProcess, TerminalSize};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::signal::unix::{SignalKind, signal};

use crate::arguments::{AttachOptions, ExecOptions, Place, SessionOptions};
use crate::client::api::{Api, refused};
use crate::client::pods;
use crate::terminal;

const BUFFER: usize = 64 << 10;

/// Runs a program in a container.
pub(crate) async fn exec(place: &Place, options: &ExecOptions) -> anyhow::Result<ExitCode> {
    let api = Api::of(place).await?;
    let namespace = &options.session.scope.namespace;
    let pod = pods::one(&api, namespace, &options.target).await?;
    let parameters = parameters(&options.session);
    let process = api
        .pods(namespace)
        .exec(&pod, options.command.iter(), &parameters)
        .await
        .map_err(refused)?;
    follow(process, &parameters).await
}

/// Attaches to a running program.
pub(crate) async fn attach(place: &Place, options: &AttachOptions) -> anyhow::Result<ExitCode> {
    let api = Api::of(place).await?;
    let namespace = &options.session.scope.namespace;
    let pod = pods::one(&api, namespace, &options.target).await?;
    let parameters = parameters(&options.session);
    let process = api.pods(namespace).attach(&pod, &parameters).await.map_err(refused)?;
    if parameters.stdin && parameters.tty && std::io::stdin().is_terminal() {
        terminal::note("If you don't see a command prompt, try pressing enter.");
    }
    follow(process, &parameters).await
}

fn parameters(options: &SessionOptions) -> AttachParams {
    let mut tty = options.tty;
    if tty && !std::io::stdin().is_terminal() {
        terminal::note("Unable to use a TTY - input is not a terminal or the right kind of file");
        tty = false;
    }
    AttachParams {
        container: options.container.clone(),
        stdin: options.stdin,
        stdout: true,
        // A terminal has a single output.
        stderr: !tty,
        tty,
        max_stdin_buf_size: Some(BUFFER),
        max_stdout_buf_size: Some(BUFFER),
        max_stderr_buf_size: Some(BUFFER),
    }
}

/// Copies all streams until the program ends; returns its exit code.
async fn follow(mut process: AttachedProcess, parameters: &AttachParams) -> anyhow::Result<ExitCode> {
    let raw = if parameters.tty { Raw::set() } else { None };
    let status = process.take_status();
    let (stdin, stdout, stderr) = (process.stdin(), process.stdout(), process.stderr());
    let size = process.terminal_size();
    let outputs = async { tokio::try_join!(copy(stdout, tokio::io::stdout()), copy(stderr, tokio::io::stderr()),) };
    let inputs = async {
        if let Some(mut stdin) = stdin {
            // A program that has ended reads no more: its status explains that.
            let copied = tokio::io::copy(&mut tokio::io::stdin(), &mut stdin).await;
            drop((copied, stdin.shutdown().await));
        }
        std::future::pending::<()>().await;
    };
    let sizes = async {
        if let Some(sender) = size {
            follow_size(sender).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        copied = outputs => drop(copied?),
        () = inputs => {}
        () = sizes => {}
    }
    let status = match status {
        Some(status) => status.await,
        None => None,
    };
    drop(raw);
    code(status)
}

async fn copy(from: Option<impl AsyncRead + Unpin>, mut to: impl AsyncWrite + Unpin) -> std::io::Result<()> {
    let Some(mut from) = from else { return Ok(()) };
    let mut buffer = vec![0; BUFFER];
    loop {
        let count = from.read(&mut buffer).await?;
        let Some(read) = buffer.get(..count).filter(|read| !read.is_empty()) else {
            return Ok(());
        };
        to.write_all(read).await.map_err(terminal::unread)?;
        to.flush().await.map_err(terminal::unread)?;
    }
}

/// Sends the size of the terminal, now and after each change.
async fn follow_size(mut sender: impl futures::Sink<TerminalSize> + Unpin) {
    let Ok(mut changes) = signal(SignalKind::window_change()) else {
        return;
    };
    loop {
        if let Ok(size) = tcgetwinsize(std::io::stdout()) {
            let size = TerminalSize {
                width: size.ws_col,
                height: size.ws_row,
            };
            if sender.send(size).await.is_err() {
                return;
            }
        }
        if changes.recv().await.is_none() {
            return;
        }
    }
}

/// Returns the exit code in a status, or why there is none.
pub(crate) fn code(status: Option<Status>) -> anyhow::Result<ExitCode> {
    let Some(status) = status else {
        bail!("the connection ended before the program did");
    };
    if status.status.as_deref() == Some("Success") {
        return Ok(ExitCode::SUCCESS);
    }
    let causes = status.details.as_ref().and_then(|details| details.causes.as_deref());
    let exit = causes
        .unwrap_or_default()
        .iter()
        .find(|cause| cause.reason.as_deref() == Some("ExitCode"));
    let number = exit.and_then(|cause| cause.message.as_deref()?.parse::<i32>().ok());
    match number.map(u8::try_from) {
        Some(Ok(number)) => {
            terminal::note(format!("command terminated with exit code {number}"));
            Ok(ExitCode::from(number))
        }
        Some(Err(_)) => Ok(ExitCode::FAILURE),
        None => bail!("{}", status.message.unwrap_or_default()),
    }
}

/// Terminal in raw mode, restored on drop.
struct Raw(Termios);

impl Raw {
    fn set() -> Option<Self> {
        let before = tcgetattr(std::io::stdin()).ok()?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(std::io::stdin(), OptionalActions::Now, &raw).ok()?;
        Some(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0).is_err() {
            terminal::note("the terminal could not be set back: type `reset`");
        }
    }
}

/// Waits for a future until Ctrl-C.
pub(crate) async fn until_interrupted(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::select! {
        done = work => done,
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}
