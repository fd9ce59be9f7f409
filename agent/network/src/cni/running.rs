//! Finds the configured list, and runs its plugins one after another.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::list::{Capabilities, List};
use super::plugin::{self, Failure, Surroundings, Verb};
use super::records::Record;
use super::{INTERFACE, Inner, outcome};
use crate::AttachSpec;
use crate::bridge::sandbox::namespace;

/// Maximum size of a configuration file.
const FILE_LIMIT: u64 = 1 << 20;

impl Inner {
    /// Configured list: the first valid file by name.
    pub(super) fn configured(&self) -> Option<List> {
        self.first_valid(|path, problem| {
            tracing::warn!(path = %path.display(), problem, "a network configuration is passed over");
        })
    }

    /// First valid file by name; `passed` is called with each invalid file before it, and its
    /// error.
    pub(super) fn first_valid(&self, passed: impl Fn(&Path, String)) -> Option<List> {
        let folder = &self.config.conf_dir;
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let of_interest = |path: &PathBuf| {
            let ending = path.extension().and_then(|ending| ending.to_str());
            matches!(ending, Some("conf" | "conflist" | "json"))
        };
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(of_interest).collect();
        files.sort();
        files.iter().find_map(|path| match load(path) {
            Ok(list) => Some(list),
            Err(problem) => {
                passed(path, problem);
                None
            }
        })
    }

    fn surroundings(&self, record: &Record) -> Surroundings {
        let AttachSpec { sandbox_id, pod, .. } = &record.spec;
        let held = namespace::is_held(&record.netns);
        Surroundings {
            folders: self.config.bin_dirs.clone(),
            container: sandbox_id.clone(),
            netns: if held { record.netns.clone() } else { PathBuf::new() },
            interface: INTERFACE,
            arguments: format!(
                "IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={};K8S_POD_INFRA_CONTAINER_ID={sandbox_id};K8S_POD_UID={}",
                pod.namespace, pod.name, pod.uid
            ),
            limit: self.config.time_limit,
        }
    }

    /// Environment of operations on the node as a whole.
    pub(super) fn of_the_node(&self) -> Surroundings {
        Surroundings {
            folders: self.config.bin_dirs.clone(),
            container: String::new(),
            netns: PathBuf::new(),
            interface: INTERFACE,
            arguments: String::new(),
            limit: self.config.time_limit,
        }
    }

    /// Runs the plugins one after another and returns the last result. DEL runs in reverse order,
    /// and continues past errors.
    pub(super) async fn run_list(&self, verb: Verb, list: &List, record: &Record) -> Result<Option<Value>, Failure> {
        let around = self.surroundings(record);
        let capabilities = Capabilities {
            ports: &record.spec.ports,
            ranges: record.ranges,
            bandwidth: record.spec.bandwidth,
        };
        let mut previous = match verb {
            // Plugins of older versions do not support `prevResult` here.
            Verb::Delete | Verb::Check if list.since("0.4.0") => record.result.clone(),
            Verb::Add | Verb::Delete | Verb::Check | Verb::Status | Verb::Collect => None,
        };
        let mut failures = Vec::new();
        let mut plugins: Vec<_> = list.plugins.iter().collect();
        if verb == Verb::Delete {
            plugins.reverse();
        }
        for plugin in plugins {
            let kind = plugin.get("type").and_then(Value::as_str).unwrap_or_default();
            let request = list.request(plugin, &capabilities, previous.as_ref()).to_string();
            let answered = plugin::run(verb, kind, request.as_bytes(), &around).await;
            let answered = answered.and_then(|answer| match verb {
                Verb::Add => serde_json::from_slice::<Value>(&answer).map(Some).map_err(|error| {
                    // Different messages would count as separate events.
                    tracing::warn!(
                        plugin = kind,
                        result = outcome::shortened(&answer),
                        "a result is not JSON"
                    );
                    format!("its result is not JSON: {error}").into()
                }),
                Verb::Delete | Verb::Check | Verb::Status | Verb::Collect => Ok(None),
            });
            let name = &list.name;
            let told = |failure: Failure| Failure {
                what: format!("plugin type={kind:?} name={name:?} failed ({}): {failure}", verb.word()),
                ..failure
            };
            match answered.map_err(told) {
                Ok(Some(result)) => previous = Some(result),
                Ok(None) => {}
                Err(failure) if verb == Verb::Delete => failures.push(failure),
                Err(failure) => return Err(failure),
            }
        }
        if failures.is_empty() {
            Ok(previous)
        } else {
            Err(Failure {
                missing: failures.iter().all(|failure| failure.missing),
                what: failures.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
            })
        }
    }

    /// Calls the plugins with the list of valid attachments (GC), so that they remove all others,
    /// then with STATUS.
    pub(super) async fn look_after(&self, list: &List) {
        if list.collect {
            self.collect(list).await;
        }
        self.ask_status(list).await;
    }

    async fn collect(&self, list: &List) {
        let valid: Vec<Value> = self
            .records()
            .all()
            .iter()
            .map(|record| json!({"containerID": record.spec.sandbox_id, "ifname": INTERFACE}))
            .collect();
        let around = self.of_the_node();
        for plugin in &list.plugins {
            let kind = plugin.get("type").and_then(Value::as_str).unwrap_or_default();
            let mut request = list.request(plugin, &Capabilities::default(), None);
            if let Value::Object(request) = &mut request {
                request.insert("cni.dev/valid-attachments".to_owned(), valid.clone().into());
            }
            if let Err(problem) = plugin::run(Verb::Collect, kind, request.to_string().as_bytes(), &around).await {
                tracing::warn!(plugin = kind, %problem, "a network plugin did not drop what nobody has any more");
            }
        }
    }
}

fn load(path: &Path) -> Result<List, String> {
    use std::io::Read as _;
    let mut text = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    file.take(FILE_LIMIT)
        .read_to_end(&mut text)
        .map_err(|error| error.to_string())?;
    List::parse(&text).map_err(|error| error.to_string())
}
