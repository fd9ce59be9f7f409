//! Log of libcontainer while it creates a container. Its result says which step failed but not why:
//! the causes are only in the log.

use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use oci_spec::runtime::Mount;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::Refusal;
use crate::supervisor::process::program::words;

/// Limit of the read log, in bytes.
const MOST: u64 = 64 << 10;
/// Upper bound of errno values.
const ERRORS: i32 = 200;

/// Log of this process and of its forks.
pub(in crate::supervisor) struct Complaints(File);

/// Entry of the log.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::supervisor) struct Complaint {
    message: String,
    /// The error's `Debug` form.
    error: String,
}

impl Complaints {
    pub(in crate::supervisor) fn new() -> io::Result<Self> {
        Ok(Self(memfd_create(c"complaints", MFdFlags::MFD_CLOEXEC)?.into()))
    }

    /// Runs some work and collects its log.
    pub(in crate::supervisor) fn during<T>(&self, work: impl FnOnce() -> T) -> io::Result<T> {
        let listener = Listener(self.0.try_clone()?);
        Ok(tracing::subscriber::with_default(listener, work))
    }

    /// Returns the logged entries, oldest first.
    pub(in crate::supervisor) fn heard(mut self) -> Vec<Complaint> {
        let mut text = String::new();
        // The creation has failed already; an error in reading its log changes nothing.
        self.0.rewind().ok();
        self.0.take(MOST).read_to_string(&mut text).ok();
        let entries = text.lines().filter_map(|line| serde_json::from_str(line).ok());
        entries.map(|(message, error)| Complaint { message, error }).collect()
    }
}

/// Returns the mount that failed and the cause, in runc's words. `mounts` are those of
/// libcontainer's configuration, `sources` their original sources.
pub(in crate::supervisor) fn failed_mount(
    all: &[Complaint],
    mounts: &[Mount],
    sources: &[(PathBuf, PathBuf)],
) -> Option<String> {
    let (mount, rest) = all.iter().find_map(|complaint| {
        let of = |mount: &&Mount| {
            let begin = format!("failed to mount {mount:?}: ");
            complaint.message.starts_with(&begin)
        };
        let mount = mounts.iter().find(of)?;
        Some((mount, complaint.message.rsplit(": ").next().unwrap_or_default()))
    })?;
    let why = cause(all).map(|why| match (why, mount.source()) {
        // The mount calls since Linux 5.2 refuse so to cover a directory by a file.
        (Errno::EINVAL, Some(source)) if source.is_file() => Errno::ENOTDIR,
        (why, _) => why,
    });
    Some(at(mount, &why.map_or_else(|| rest.to_owned(), words), sources))
}

/// Formats the error of a mount that failed before libcontainer began, in the same words.
pub(in crate::supervisor) fn failed_at(mount: &Mount, error: &io::Error, sources: &[(PathBuf, PathBuf)]) -> Refusal {
    let number = error.raw_os_error().map(Errno::from_raw);
    let why = number.map_or_else(|| error.to_string(), words);
    Refusal::Program(format!("error during container init: {}", at(mount, &why, sources)))
}

/// Adds the mount's source on the machine.
fn at(mount: &Mount, why: &str, sources: &[(PathBuf, PathBuf)]) -> String {
    let destination = mount.destination();
    let own = || mount.source().as_deref().unwrap_or(Path::new(""));
    let origin = sources.iter().rfind(|(place, _)| place == destination);
    let source = origin.map_or_else(own, |(_, source)| source);
    let (source, destination) = (source.display().to_string(), destination.display().to_string());
    format!("error mounting {source:?} to rootfs at {destination:?}: {why}")
}

/// Errno of the first entry that has one.
fn cause(all: &[Complaint]) -> Option<Errno> {
    all.iter().find_map(|complaint| errno(&complaint.error))
}

/// Parses an errno from the `Debug` form of an error that contains it.
fn errno(text: &str) -> Option<Errno> {
    let between = |before: &str, after: char| {
        let (_, rest) = text.split_once(before)?;
        rest.split_once(after).map(|(found, _)| found)
    };
    let numbered = between("code: ", ',').and_then(|number| number.parse().ok());
    let named = |name: &str| {
        (1..ERRORS)
            .map(Errno::from_raw)
            .find(|error| format!("{error:?}") == name)
    };
    numbered
        .map(Errno::from_raw)
        .or_else(|| between("Nix(", ')').and_then(named))
        .or_else(|| named(text))
}

struct Listener(File);

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::ERROR
    }

    fn max_level_hint(&self) -> Option<tracing::level_filters::LevelFilter> {
        Some(tracing::level_filters::LevelFilter::ERROR)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut complaint = Complaint::default();
        event.record(&mut complaint);
        if let Ok(mut line) = serde_json::to_vec(&(&complaint.message, &complaint.error)) {
            line.push(b'\n');
            // The parent process reads it, if it still lives.
            (&self.0).write_all(&line).ok();
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Visit for Complaint {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let into = match field.name() {
            "message" => &mut self.message,
            "err" | "e" | "errno" => &mut self.error,
            _ => return,
        };
        // Writing to memory does not fail.
        write!(into, "{value:?}").ok();
    }
}

/// Failure of the container's init process.
pub(in crate::supervisor) fn init_failed(why: &str) -> Refusal {
    Refusal::Program(format!("error during container init: {why}"))
}

/// libcontainer's message for a working directory that it cannot enter.
const NOT_ENTERED: &str = "failed to unix syscall";

/// libcontainer's messages for a broken channel between two of its processes: they carry no cause.
const CHANNEL: [&str; 4] = [
    "BrokenChannel",
    "channel connection broken",
    "failed to receive",
    "received unexpected message",
];

fn is_of_channel(text: &str) -> bool {
    CHANNEL.iter().any(|words| text.contains(words))
}

/// Returns the first entry, with the kernel's error.
fn first(all: &[Complaint]) -> String {
    let mut real = all
        .iter()
        .filter(|said| !is_of_channel(&said.message) && !is_of_channel(&said.error));
    let Some(Complaint { message, error }) = real.next() else {
        return "the first process ended before it could run the program".to_owned();
    };
    match errno(error) {
        Some(number) => format!("{message}: {}", words(number)),
        None if error.is_empty() => message.clone(),
        None => format!("{message}: {error}"),
    }
}

/// libcontainer's error, without that of its cleanup: the supervisor cleans up.
pub(in crate::supervisor) fn described(text: &str, heard: &[Complaint], directory: &Path) -> Refusal {
    let cause = text.split(". error during cleanup:").next().unwrap_or_default();
    // libcontainer searches for the program during the creation, and passes the init process's
    // error on as text.
    if let Some((_, why)) = cause.split_once("exec process failed with error ") {
        let why = why.strip_prefix("error in executing process : ").unwrap_or(why);
        // The directory was created unless something is in the way: here it is a dangling link.
        let nowhere = format!("mkdir {}: file exists", directory.display());
        let why = if why == NOT_ENTERED { &nowhere } else { why };
        return init_failed(why);
    }
    if is_of_channel(cause) {
        return init_failed(&first(heard));
    }
    Refusal::Failed {
        doing: "create container".to_owned(),
        cause: cause.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Imitates an error of libcontainer.
    #[derive(Debug)]
    struct Nix(#[expect(dead_code, reason = "it is printed")] Errno);

    #[test]
    fn a_channel_that_broke_is_never_the_message() {
        let said = |text: &str, heard: &[(&str, &str)]| {
            let heard: Vec<Complaint> = heard
                .iter()
                .map(|(message, error)| Complaint {
                    message: (*message).to_owned(),
                    error: (*error).to_owned(),
                })
                .collect();
            described(text, &heard, Path::new("/")).to_string()
        };
        let broken = "failed to receive. \"waiting for init ready\". BrokenChannel. error during cleanup: none";
        let own = (
            "failed to wait for init ready",
            "ReceiveError { source: BrokenChannel }",
        );
        for (heard, wanted) in [
            (
                vec![own, ("failed to set hostname", "Nix(EPERM)")],
                "failed to set hostname: operation not permitted",
            ),
            (
                vec![("failed to set hostname", "strange"), own],
                "failed to set hostname: strange",
            ),
            (vec![own], "the first process ended before it could run the program"),
            (vec![], "the first process ended before it could run the program"),
        ] {
            let text = said(broken, &heard);
            assert!(
                text.ends_with(&format!("error during container init: {wanted}")),
                "{text}"
            );
        }
        assert!(said("no space left", &[]).contains("no space left"));
    }

    #[test]
    fn what_is_heard_names_the_mount_and_the_cause() {
        let mount: Mount = serde_json::from_str(r#"{"destination": "/etc/x", "source": "/folders/3"}"#).unwrap();
        let sources = [("/etc/x".into(), "/srv/x".into())];
        let said = |error: &dyn fmt::Debug, nix: bool| {
            let complaints = Complaints::new().unwrap();
            let work = || {
                tracing::info!("nothing to say");
                tracing::error!("failed to mount {:?}: {}", mount, "io error");
                if nix {
                    let err = error;
                    tracing::error!(?err, "failed to prepare rootfs");
                }
            };
            complaints.during(work).unwrap();
            failed_mount(&complaints.heard(), std::slice::from_ref(&mount), &sources)
        };
        let whole = |why: &str| Some(format!("error mounting \"/srv/x\" to rootfs at \"/etc/x\": {why}"));
        let nested = Some(Some(Err::<(), _>(io::Error::from_raw_os_error(20))));
        assert_eq!(said(&nested, true), whole("not a directory"));
        assert_eq!(said(&Some(Nix(Errno::EROFS)), true), whole("read-only file system"));
        assert_eq!(said(&"unknown", true), whole("io error"));
        assert_eq!(said(&(), false), whole("io error"));
        assert_eq!(failed_mount(&[], &[mount], &sources), None);
    }
}
