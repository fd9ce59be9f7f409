//! Recorded sessions with stock kubectl: `tests/transcripts/*.txt` against a control plane without
//! a node.
//!
//! A transcript is a list of steps. `$ ` begins a shell command, `> ` continues it; then follow the
//! expected output, both streams together, and `[CODE]` when the command fails. In it `…` stands
//! for any text within a line and a line `...` for any lines; the width of the gaps between columns
//! does not count. `1.29+ $ ` and `1.29- $ ` begin steps for kubectl from or up to a version. `$NS`
//! is the session's own namespace, in commands and in outputs; `$ADMIN` is the administrator's
//! kubeconfig.
//!
//! The newest kubectl plays every transcript, each of the others one; `SKIFF_EVERY_KUBECTL=1` has
//! each play all.

#![allow(clippy::panic, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::Context as _;
use tests::machine::Namespace;
use tests::process;
use tests::server::Server;

/// Number of concurrent sessions; some of them wait most of the time.
const SESSIONS: usize = 4;

/// A command and its expected output.
struct Step {
    line: usize,
    since: u32,
    until: u32,
    command: String,
    expected: Vec<String>,
}

/// Reads a transcript; lines before the first step are its description.
fn parse(text: &str) -> anyhow::Result<Vec<Step>> {
    let mut steps: Vec<Step> = Vec::new();
    let mut commanding = false;
    for (number, line) in text.lines().enumerate() {
        if let Some((versions, command)) = command(line) {
            let (since, until) = match versions.split_at_checked(versions.len().saturating_sub(1)) {
                Some((version, "+")) => (minor(version)?, u32::MAX),
                Some((version, "-")) => (0, minor(version)?),
                _ => (0, u32::MAX),
            };
            steps.push(Step {
                line: number + 1,
                since,
                until,
                command: command.to_owned(),
                expected: Vec::new(),
            });
            commanding = true;
        } else if let Some(step) = steps.last_mut() {
            if let Some(more) = line.strip_prefix('>').filter(|_| commanding) {
                step.command.push('\n');
                step.command.push_str(more.strip_prefix(' ').unwrap_or(more));
            } else {
                commanding = false;
                step.expected.push(line.trim_end().to_owned());
            }
        }
    }
    Ok(steps)
}

/// Splits `1.29+ $ kubectl get pods` and `$ kubectl get pods`.
fn command(line: &str) -> Option<(&str, &str)> {
    if let Some(command) = line.strip_prefix("$ ") {
        return Some(("", command));
    }
    let (versions, command) = line.split_once(" $ ")?;
    let ours = versions.starts_with("1.") && versions.ends_with(['+', '-']);
    ours.then_some((versions, command))
}

fn minor(version: &str) -> anyhow::Result<u32> {
    let digits: String = version
        .trim_start_matches("1.")
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    digits.parse().with_context(|| format!("a version 1.N, not {version}"))
}

/// True if lines match a pattern with `...` for any lines.
fn lines_match(pattern: &[String], lines: &[String]) -> bool {
    match (pattern.split_first(), lines.split_first()) {
        (None, None) => true,
        (Some((first, rest)), _) if first == "..." => {
            (0..=lines.len()).any(|skipped| lines.get(skipped..).is_some_and(|lines| lines_match(rest, lines)))
        }
        (Some((first, rest)), Some((line, lines))) => line_matches(first, line) && lines_match(rest, lines),
        (Some(_), None) | (None, Some(_)) => false,
    }
}

/// True if a line matches a pattern with `…` for any text. The width of the gaps between columns
/// does not count.
fn line_matches(pattern: &str, line: &str) -> bool {
    let (pattern, line) = (&narrowed(pattern), &narrowed(line));
    let mut parts = pattern.split('…');
    let Some(mut rest) = parts.next().and_then(|start| line.strip_prefix(start)) else {
        return false;
    };
    let mut parts: Vec<&str> = parts.collect();
    let Some(end) = parts.pop() else {
        return rest.is_empty();
    };
    for part in parts {
        let Some((_, after)) = rest.split_once(part) else {
            return false;
        };
        rest = after;
    }
    rest.ends_with(end)
}

/// The line with gaps of three spaces at most, but for its indentation.
fn narrowed(line: &str) -> String {
    let text = line.trim_start();
    let (mut narrow, mut gap) = (line.get(..line.len() - text.len()).unwrap_or_default().to_owned(), 0);
    for letter in text.chars() {
        gap = if letter == ' ' { gap + 1 } else { 0 };
        if gap <= 3 {
            narrow.push(letter);
        }
    }
    narrow
}

struct Kubectl {
    program: PathBuf,
    minor: u32,
}

/// A kubectl that plays one transcript, in a directory and a namespace of its own.
struct Session<'a> {
    server: &'a Server,
    kubectl: &'a Kubectl,
    transcript: &'a Path,
    home: tempfile::TempDir,
    namespace: String,
}

impl<'a> Session<'a> {
    fn begin(server: &'a Server, kubectl: &'a Kubectl, transcript: &'a Path) -> anyhow::Result<Self> {
        let title = transcript
            .file_stem()
            .and_then(|stem| stem.to_str())
            .context("a name")?;
        let session = Self {
            server,
            kubectl,
            transcript,
            home: tempfile::tempdir()?,
            namespace: format!("{title}-{}", kubectl.minor),
        };
        let home = session.home.path();
        std::os::unix::fs::symlink(&kubectl.program, home.join("kubectl"))?;
        std::fs::create_dir(home.join("work"))?;
        std::fs::copy(session.admin(), home.join("config"))?;
        let prepare = "kubectl create namespace $NS && kubectl config set-context --current --namespace=$NS && \
                       for n in $(seq 200); do kubectl get sa default && break; done";
        let said = session.shell(prepare)?;
        anyhow::ensure!(!said.iter().any(|line| line.starts_with('[')), "{prepare}: {said:?}");
        Ok(session)
    }

    fn admin(&self) -> PathBuf {
        self.server.state().join("admin.kubeconfig")
    }

    /// Plays all steps; the answer tells where it differed.
    fn play(&self) -> anyhow::Result<Option<String>> {
        let mut differences = String::new();
        for step in parse(&std::fs::read_to_string(self.transcript)?)? {
            if !(step.since..=step.until).contains(&self.kubectl.minor) {
                continue;
            }
            let mut said = self.shell(&step.command)?;
            let expected = step.expected.iter();
            let mut expected: Vec<String> = expected.map(|line| line.replace("$NS", &self.namespace)).collect();
            trim(&mut said);
            trim(&mut expected);
            if !lines_match(&expected, &said) {
                let place = format!("{}:{}", self.transcript.display(), step.line);
                let (expected, said) = (expected.join("\n    "), said.join("\n    "));
                let command = step.command;
                writeln!(
                    differences,
                    "{place}: {command}\n  expected:\n    {expected}\n  said:\n    {said}"
                )?;
            }
        }
        let differs = !differences.is_empty();
        Ok(differs.then(|| format!("kubectl 1.{}\n{differences}", self.kubectl.minor)))
    }

    /// Returns a command's output, both streams together, and its exit status when it failed.
    fn shell(&self, command: &str) -> anyhow::Result<Vec<String>> {
        let home = self.home.path();
        let path = std::env::var("PATH").unwrap_or_default();
        let output = Command::new("sh")
            .args(["-c", &format!("exec 2>&1\n{command}")])
            .current_dir(home.join("work"))
            .env("PATH", format!("{}:{path}", home.display()))
            .env("HOME", home)
            // The discovery cache is kept between sessions.
            .env(
                "KUBECACHEDIR",
                self.server.state().join(format!("cache-{}", self.kubectl.minor)),
            )
            .env("KUBECONFIG", home.join("config"))
            .env("NS", &self.namespace)
            .env("ADMIN", self.admin())
            .env("LC_ALL", "C")
            // The process is too short-lived for garbage collection.
            .env("GOGC", "off")
            .stdin(Stdio::null())
            .output()
            .with_context(|| command.to_owned())?;
        let said = String::from_utf8_lossy(&output.stdout);
        let said = said.lines().filter(|line| !is_log(line));
        let mut said: Vec<String> = said.map(|line| line.trim_end().to_owned()).collect();
        if !output.status.success() {
            said.push(format!("[{}]", output.status.code().unwrap_or(-1)));
        }
        Ok(said)
    }
}

/// True for lines of client-go's own log (`W1121 19:21:21.538466 …`), which appear when a machine
/// is slow.
fn is_log(line: &str) -> bool {
    let digits = line.strip_prefix(['I', 'W', 'E']).and_then(|rest| rest.get(..5));
    digits.is_some_and(|text| text.ends_with(' ') && text.trim_end().chars().all(|letter| letter.is_ascii_digit()))
}

/// Takes empty lines off the end.
fn trim(lines: &mut Vec<String>) {
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
}

fn kubectls() -> anyhow::Result<Vec<Kubectl>> {
    let mut found = Vec::new();
    for program in process::kubectls()? {
        let version = process::run(Command::new(&program).args(["version", "--client", "-o", "json"]))?;
        let version: serde_json::Value = serde_json::from_str(&version)?;
        let version = version
            .pointer("/clientVersion/minor")
            .and_then(serde_json::Value::as_str)
            .context("a client version")?;
        let minor = minor(version)?;
        found.push(Kubectl { program, minor });
    }
    found.sort_by_key(|kubectl| kubectl.minor);
    Ok(found)
}

/// Returns the pairs of kubectl and transcript to play.
fn plan<'a>(kubectls: &'a [Kubectl], transcripts: &'a [PathBuf]) -> Vec<(&'a Kubectl, &'a PathBuf)> {
    let every = std::env::var_os("SKIFF_EVERY_KUBECTL").is_some();
    let mut plan = Vec::new();
    for (number, transcript) in transcripts.iter().enumerate() {
        let Some((newest, others)) = kubectls.split_last() else {
            continue;
        };
        plan.push((newest, transcript));
        let players = others.iter().enumerate().filter(|(place, _)| every || *place == number);
        plan.extend(players.map(|(_, kubectl)| (kubectl, transcript)));
    }
    plan
}

#[test]
fn stock_kubectl_says_what_it_says_to_kubernetes() -> anyhow::Result<()> {
    tests::logging();
    let folder = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("transcripts");
    let only = std::env::var("SKIFF_TRANSCRIPT").unwrap_or_default();
    let mut transcripts = Vec::new();
    for entry in std::fs::read_dir(&folder)? {
        let path = entry?.path();
        if path.display().to_string().contains(&only) {
            transcripts.push(path);
        }
    }
    transcripts.sort();
    let kubectls = kubectls()?;
    let namespace = Namespace::new("transcripts")?;
    namespace.enter()?;
    let server = Server::start(Some(namespace), "127.0.0.1:6443")?;
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(server.ready())?;
    let sessions = Mutex::new(plan(&kubectls, &transcripts));
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..SESSIONS {
            scope.spawn(|| {
                let next = || sessions.lock().unwrap_or_else(PoisonError::into_inner).pop();
                while let Some((kubectl, transcript)) = next() {
                    let played = Session::begin(&server, kubectl, transcript).and_then(|session| session.play());
                    let difference = played.unwrap_or_else(|error| Some(format!("{error:?}")));
                    failed.lock().unwrap_or_else(PoisonError::into_inner).extend(difference);
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    anyhow::ensure!(failed.is_empty(), "{}", failed.join("\n"));
    server.finish()
}
