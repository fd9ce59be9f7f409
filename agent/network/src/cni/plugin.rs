//! Runs one plugin with bounded time and output; a plugin that exceeds a bound is killed with all
//! of its children.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

use super::outcome;

/// Maximum size of a plugin's output.
const OUTPUT_LIMIT: usize = 1 << 20;
/// Time to wait for output after a plugin has exited: a child process may hold the pipe open.
const DRAIN_LIMIT: Duration = Duration::from_millis(200);

/// Operation of the CNI specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Add,
    Delete,
    Check,
    Status,
    Collect,
}

impl Verb {
    const fn command(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Delete => "DEL",
            Self::Check => "CHECK",
            Self::Status => "STATUS",
            Self::Collect => "GC",
        }
    }

    /// Name of the operation in messages.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Delete => "delete",
            Self::Check => "check",
            Self::Status => "status",
            Self::Collect => "gc",
        }
    }
}

/// Environment of all plugins of a list.
#[derive(Clone, Debug)]
pub(super) struct Surroundings {
    /// Directories that are searched for plugins, in this order.
    pub(super) folders: Vec<PathBuf>,
    pub(super) container: String,
    /// Path of the namespace, empty if it is gone.
    pub(super) netns: PathBuf,
    pub(super) interface: &'static str,
    pub(super) arguments: String,
    pub(super) limit: Duration,
}

/// A plugin, or a list of them, has failed.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub(super) struct Failure {
    /// Error message.
    pub(super) what: String,
    /// True if missing programs were the only errors.
    pub(super) missing: bool,
}

impl From<String> for Failure {
    fn from(what: String) -> Self {
        Self { what, missing: false }
    }
}

/// Runs a plugin and returns its standard output.
pub(super) async fn run(verb: Verb, kind: &str, request: &[u8], around: &Surroundings) -> Result<Vec<u8>, Failure> {
    let program = find(kind, &around.folders).map_err(|what| Failure { what, missing: true })?;
    Ok(ask(verb, &program, request, around).await?)
}

async fn ask(verb: Verb, program: &Path, request: &[u8], around: &Surroundings) -> Result<Vec<u8>, String> {
    let started = command(verb, program, around).spawn();
    let mut child = started.map_err(|error| format!("{}: {error}", program.display()))?;
    let group = child.id().and_then(|pid| i32::try_from(pid).ok());
    let ended = tokio::time::timeout(around.limit, talk(&mut child, request)).await;
    let failure = match ended {
        Ok(Ok(Ended {
            success: true, stdout, ..
        })) => return Ok(stdout),
        Ok(Ok(Ended {
            status, stdout, stderr, ..
        })) => return Err(outcome::refusal(&stdout, &stderr, &status)),
        Ok(Err(error)) => error.to_string(),
        Err(_elapsed) => format!("no answer within {:?}", around.limit),
    };
    // Its exit status was not collected yet, so its process group ID cannot be reused.
    if let Some(group) = group {
        killpg(Pid::from_raw(group), Signal::SIGKILL).ok();
    }
    match tokio::time::timeout(around.limit, child.wait()).await {
        Ok(Ok(_)) => Err(failure),
        Ok(Err(error)) => Err(format!("{failure}; it could not be waited for: {error}")),
        Err(_elapsed) => Err(format!("{failure}; it does not die")),
    }
}

fn find(kind: &str, folders: &[PathBuf]) -> Result<PathBuf, String> {
    let candidates = folders.iter().map(|folder| folder.join(kind));
    candidates.into_iter().find(|path| path.is_file()).ok_or_else(|| {
        let all: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
        format!("failed to find plugin {kind:?} in path [{}]", all.join(" "))
    })
}

fn command(verb: Verb, program: &Path, around: &Surroundings) -> Command {
    let folders: Vec<String> = around
        .folders
        .iter()
        .map(|folder| folder.display().to_string())
        .collect();
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("CNI_COMMAND", verb.command())
        .env("CNI_PATH", folders.join(":"))
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    // The other operations are about the node as a whole.
    if matches!(verb, Verb::Add | Verb::Delete | Verb::Check) {
        command
            .env("CNI_CONTAINERID", &around.container)
            .env("CNI_NETNS", &around.netns)
            .env("CNI_IFNAME", around.interface)
            .env("CNI_ARGS", &around.arguments);
    }
    command
}

struct Ended {
    success: bool,
    status: String,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

async fn talk(child: &mut Child, request: &[u8]) -> io::Result<Ended> {
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(mut stdin), Some(out), Some(err)) = pipes else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    let tell = async {
        // A plugin that does not read its standard input may still succeed.
        drop(stdin.write_all(request).await);
        drop(stdin);
    };
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let status = {
        let read = async { tokio::try_join!(take(out, &mut stdout), take(err, &mut stderr)) };
        let (mut tell, mut read) = (std::pin::pin!(tell), std::pin::pin!(read));
        let (mut told, mut all) = (false, false);
        let status = loop {
            tokio::select! {
                status = child.wait() => break status?,
                read = &mut read, if !all => {
                    read?;
                    all = true;
                }
                () = &mut tell, if !told => told = true,
            }
        };
        if !all && let Ok(read) = tokio::time::timeout(DRAIN_LIMIT, read).await {
            read?;
        }
        status
    };
    Ok(Ended {
        success: status.success(),
        status: match status.code() {
            Some(code) => format!("exit status {code}"),
            None => status.to_string(),
        },
        stdout,
        stderr,
    })
}

/// Reads to the end; fails if the limit is exceeded.
async fn take(mut source: impl AsyncRead + Unpin, into: &mut Vec<u8>) -> io::Result<()> {
    let limit = u64::try_from(OUTPUT_LIMIT).unwrap_or(u64::MAX);
    (&mut source).take(limit).read_to_end(into).await?;
    if into.len() < OUTPUT_LIMIT {
        return Ok(());
    }
    Err(io::Error::other(format!("it prints more than {OUTPUT_LIMIT} bytes")))
}
