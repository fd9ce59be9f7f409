//! Records of the last terminations of containers that were to keep running or to succeed, and of
//! the last pods that the node rejected. They outlive the pods, so that failures can be explained
//! later: a few files, each with the last terminations of one container, or with one rejection.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use agent_plan::Timestamp;
use agent_plan::pod::observed::Exit;
use agent_plan::pod::pods;
use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};

/// Maximum number of containers on record; the one with the oldest last termination is dropped
/// first.
const CONTAINERS: usize = 128;
/// Maximum number of rejected pods on record: a controller that recreates a rejected pod creates
/// many.
const REFUSALS: usize = 32;
/// Maximum number of terminations of one container.
const ENDS: usize = 3;
/// Maximum size of a record's file.
const BYTES: u64 = 64 << 10;
/// Maximum length of a message or of output in bytes.
const TEXT: usize = 4 << 10;

/// Container with its terminations, oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Story {
    pub(crate) namespace: String,
    pub(crate) pod: String,
    uid: String,
    /// Empty for a pod that was rejected.
    container: String,
    image: String,
    /// `ReplicaSet/web-5d`; empty for none.
    owner: String,
    /// Limit as written in the pod; empty for none.
    memory_limit: String,
    ends: Vec<End>,
}

/// Termination, or rejection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct End {
    attempt: u32,
    exit_code: i32,
    reason: String,
    message: String,
    started_at: Option<String>,
    finished_at: String,
    /// Peak memory usage in bytes.
    memory_peak: Option<u64>,
    cpu_milliseconds: Option<u64>,
    /// Last lines of output.
    output: String,
}

impl End {
    pub(crate) fn new(attempt: u32, exit: &Exit, usage: &runtime::Usage, output: &str) -> Self {
        Self {
            attempt,
            exit_code: exit.code,
            reason: exit.reason.clone(),
            message: last(&exit.message),
            started_at: exit.started_at.map(|time| time.to_string()),
            finished_at: exit.finished_at.to_string(),
            memory_peak: usage.memory_peak,
            cpu_milliseconds: usage.cpu.and_then(|time| u64::try_from(time.as_millis()).ok()),
            output: last(output),
        }
    }

    pub(crate) fn refused(reason: &str, message: &str, at: Timestamp) -> Self {
        Self {
            attempt: 0,
            exit_code: 0,
            reason: reason.to_owned(),
            message: last(message),
            started_at: None,
            finished_at: at.to_string(),
            memory_peak: None,
            cpu_milliseconds: None,
            output: String::new(),
        }
    }
}

/// Returns the end of a text that is too long.
fn last(text: &str) -> String {
    let mut start = text.len().saturating_sub(TEXT);
    while !text.is_char_boundary(start) {
        start = start.saturating_add(1);
    }
    text.get(start..).unwrap_or_default().to_owned()
}

/// All records.
pub(crate) struct Crashes {
    directory: PathBuf,
    writing: Mutex<()>,
}

impl Crashes {
    pub(crate) fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            writing: Mutex::new(()),
        }
    }

    /// Adds a termination of a pod's container, or the pod's rejection if `container` is empty.
    pub(crate) fn add(&self, pod: &Pod, container: &str, end: End) -> io::Result<()> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.directory)?;
        let path = self.directory.join(format!("{}_{container}.json", pods::uid(pod)));
        let mut story = read(&path).unwrap_or_else(|| begin(pod, container));
        // After a restart, a termination may be reported again, with less detail.
        if story.ends.iter().any(|known| known.attempt == end.attempt) {
            return Ok(());
        }
        story.ends.push(end);
        story.ends.sort_by_key(|end| end.attempt);
        let extra = story.ends.len().saturating_sub(ENDS);
        story.ends.drain(..extra);
        let draft = self.directory.join(".draft");
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&draft)?;
        file.write_all(&serde_json::to_vec(&story)?)?;
        fs::rename(&draft, &path)?;
        self.forget()
    }

    fn files(&self) -> io::Result<Vec<(SystemTime, PathBuf)>> {
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut files = Vec::new();
        for entry in entries {
            let entry = entry?;
            files.push((entry.metadata()?.modified()?, entry.path()));
        }
        files.sort();
        Ok(files)
    }

    fn forget(&self) -> io::Result<()> {
        let is_refusal = |path: &PathBuf| {
            path.file_stem()
                .is_some_and(|stem| stem.as_encoded_bytes().ends_with(b"_"))
        };
        let paths = self.files()?.into_iter().map(|(_, path)| path);
        let (refusals, containers): (Vec<_>, Vec<_>) = paths.partition(is_refusal);
        for (paths, most) in [(containers, CONTAINERS), (refusals, REFUSALS)] {
            let extra = paths.len().saturating_sub(most);
            paths.iter().take(extra).try_for_each(fs::remove_file)?;
        }
        Ok(())
    }

    /// Returns the records of pods with this name, the latest failure last.
    pub(crate) fn of(&self, namespace: &str, pod: &str) -> io::Result<Vec<Story>> {
        let files = self.files()?;
        let stories = files.iter().filter_map(|(_, path)| read(path));
        Ok(stories
            .filter(|story| story.namespace == namespace && story.pod == pod)
            .collect())
    }
}

fn begin(pod: &Pod, container: &str) -> Story {
    let wanted = pods::container(pod, container);
    let limit = wanted
        .as_ref()
        .and_then(|own| own.resources.as_ref()?.limits.as_ref()?.get("memory"));
    let owner = pod
        .metadata
        .owner_references
        .iter()
        .flatten()
        .find(|owner| owner.controller == Some(true));
    Story {
        namespace: pods::namespace(pod).to_owned(),
        pod: pods::name(pod).to_owned(),
        uid: pods::uid(pod).to_owned(),
        container: container.to_owned(),
        image: wanted.as_ref().and_then(|own| own.image.clone()).unwrap_or_default(),
        owner: owner
            .map(|owner| format!("{}/{}", owner.kind, owner.name))
            .unwrap_or_default(),
        memory_limit: limit.map(|limit| limit.0.clone()).unwrap_or_default(),
        ends: Vec::new(),
    }
}

/// An unreadable record is ignored.
fn read(path: &std::path::Path) -> Option<Story> {
    let text = crate::confined::tail(path, BYTES).ok()?;
    serde_json::from_slice(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> Pod {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": name, "namespace": "n", "uid": format!("uid-{name}"), "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "r", "controller": true},
            ]},
            "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": {"memory": "1Mi"}}}]},
        }))
        .expect("a pod")
    }

    fn end(attempt: u32) -> End {
        let exit = Exit {
            code: 1,
            reason: "Error".to_owned(),
            message: String::new(),
            started_at: None,
            finished_at: Timestamp::UNIX_EPOCH,
        };
        End::new(attempt, &exit, &runtime::Usage::default(), &"é".repeat(TEXT))
    }

    #[test]
    fn a_few_failures_of_a_few_containers_are_remembered() {
        let home = tempfile::tempdir().expect("a directory");
        let crashes = Crashes::new(home.path().join("crashes"));
        assert!(crashes.of("n", "p").expect("nothing").is_empty());
        for attempt in 0..5 {
            crashes.add(&pod("p"), "c", end(attempt)).expect("added");
        }
        // Terminations that are reported again, or late, change nothing.
        crashes.add(&pod("p"), "c", end(3)).expect("known");
        crashes.add(&pod("p"), "c", end(1)).expect("too old");
        let stories = crashes.of("n", "p").expect("read");
        let story = stories.first().expect("one");
        assert_eq!(
            (stories.len(), story.owner.as_str(), story.memory_limit.as_str()),
            (1, "ReplicaSet/web", "1Mi")
        );
        let attempts: Vec<u32> = story.ends.iter().map(|end| end.attempt).collect();
        assert_eq!(attempts, [2, 3, 4]);
        assert!(story.ends.iter().all(|end| end.output.len() <= TEXT));
        assert!(crashes.of("other", "p").expect("read").is_empty());
        for number in 0..CONTAINERS {
            crashes.add(&pod(&format!("p{number}")), "c", end(0)).expect("added");
        }
        assert_eq!(crashes.files().expect("listed").len(), CONTAINERS);
        for number in 0..=REFUSALS {
            let refused = End::refused("OutOfcpu", "no room", Timestamp::UNIX_EPOCH);
            crashes.add(&pod(&format!("r{number}")), "", refused).expect("added");
        }
        // Rejections do not displace records of containers.
        assert_eq!(crashes.files().expect("listed").len(), CONTAINERS + REFUSALS);
        let refused = crashes.of("n", &format!("r{REFUSALS}")).expect("read");
        let first = refused.first().expect("one");
        assert_eq!((first.container.as_str(), first.ends.len()), ("", 1));
        fs::write(home.path().join("crashes/broken"), "{").expect("written");
        assert_eq!(crashes.of("n", "p1").expect("read").len(), 1);
    }
}
