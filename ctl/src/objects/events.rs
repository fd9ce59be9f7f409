//! `skiff events`: Events, and states that no Event tells: rollouts that fail, nodes that are not
//! Ready.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use futures::{AsyncBufReadExt as _, StreamExt as _};
use serde_json::Value;

use super::describe::time_of;
use crate::arguments::{EventsOptions, Place};
use crate::client::api::{Api, is_forbidden, text_at, with_query};
use crate::terminal;

/// Pause before a lost watch is begun anew.
const RETRY: Duration = Duration::from_secs(1);
const HEADER: [&str; 5] = ["TIME", "TYPE", "REASON", "OBJECT", "MESSAGE"];
/// Widths of the columns before anything is printed.
const WIDTHS: [usize; 4] = [20, 7, 16, 24];

/// One line of the output.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Notice {
    time: String,
    namespace: String,
    kind: String,
    reason: String,
    object: String,
    message: String,
}

/// Notice about an object, if there is one.
type Read = fn(&Value) -> Option<Notice>;

/// A collection whose objects have at most one notice each.
struct Source {
    path: String,
    notice: Read,
    /// Notices by the UIDs of their objects.
    known: BTreeMap<String, Notice>,
    version: String,
}

pub(crate) async fn run(place: &Place, options: &EventsOptions) -> anyhow::Result<()> {
    let api = Api::of(place).await?;
    let scope = if options.all_namespaces {
        String::new()
    } else {
        format!("/namespaces/{}", options.scope.namespace)
    };
    let mut sources = Vec::new();
    let mut notices = Vec::new();
    let collections: [(String, Read); 3] = [
        (format!("/api/v1{scope}/events"), |event| Some(of_event(event))),
        (format!("/apis/apps/v1{scope}/deployments"), of_deployment),
        ("/api/v1/nodes".to_owned(), of_node),
    ];
    for (path, notice) in collections {
        let (known, version) = (BTreeMap::new(), String::new());
        let mut source = Source {
            path,
            notice,
            known,
            version,
        };
        match source.list(&api).await {
            Ok(found) => notices.extend(found),
            // A user of one namespace sees what it has.
            Err(error) if is_forbidden(&error) => {
                terminal::note(format!("{error:#}"));
                continue;
            }
            Err(error) => return Err(error),
        }
        sources.push(source);
    }
    let mut printer = Printer::new(options);
    notices.sort();
    printer.print(&notices)?;
    if !options.watch {
        if printer.is_unused {
            let place = if options.all_namespaces {
                ""
            } else {
                &options.scope.namespace
            };
            terminal::note(format!("No events found{}.", in_namespace(place)));
        }
        return Ok(());
    }
    let printer = std::cell::RefCell::new(printer);
    let follow = sources.iter_mut().map(|source| source.follow(&api, &printer));
    futures::future::try_join_all(follow).await?;
    Ok(())
}

fn in_namespace(namespace: &str) -> String {
    if namespace.is_empty() {
        String::new()
    } else {
        format!(" in {namespace} namespace")
    }
}

impl Source {
    /// Returns notices that are new since the last call.
    async fn list(&mut self, api: &Api) -> anyhow::Result<Vec<Notice>> {
        let list = api.get(&self.path).await?;
        text_at(&list, "/metadata/resourceVersion").clone_into(&mut self.version);
        let items = list.get("items").and_then(Value::as_array).into_iter().flatten();
        let now = items.filter_map(|object| Some((uid(object), (self.notice)(object)?)));
        let before = std::mem::replace(&mut self.known, now.collect());
        let is_new = |(uid, notice): &(&String, &Notice)| before.get(*uid) != Some(*notice);
        let new = self.known.iter().filter(is_new).map(|(_, notice)| notice.clone());
        Ok(new.collect())
    }

    /// Prints notices as they come, whatever happens to the connection.
    async fn follow(&mut self, api: &Api, printer: &std::cell::RefCell<Printer>) -> anyhow::Result<Infallible> {
        let mut said = String::new();
        loop {
            let ended = self.watch(api, printer).await?;
            tokio::time::sleep(RETRY).await;
            let failed = match self.list(api).await {
                Ok(mut new) => {
                    new.sort();
                    printer.borrow_mut().print(&new)?;
                    said.clear();
                    continue;
                }
                Err(error) => ended.unwrap_or(error).to_string(),
            };
            if said != failed {
                terminal::note(format!("{failed}; trying again"));
                said = failed;
            }
        }
    }

    /// Watches until the connection ends, and returns why if that is known.
    async fn watch(
        &mut self,
        api: &Api,
        printer: &std::cell::RefCell<Printer>,
    ) -> anyhow::Result<Option<anyhow::Error>> {
        let from = [
            ("watch", Some("true")),
            ("resourceVersion", Some(self.version.as_str())),
        ];
        let mut lines = match api.stream(&with_query(&self.path, &from), false).await {
            Ok(stream) => stream.lines(),
            Err(error) => return Ok(Some(error)),
        };
        while let Some(line) = lines.next().await {
            let read = line.map_err(anyhow::Error::from);
            let event: Value = match read.and_then(|line| Ok(serde_json::from_str(&line)?)) {
                Ok(event) => event,
                Err(error) => return Ok(Some(error)),
            };
            let object = event.get("object").unwrap_or(&Value::Null);
            let notice = match text_at(&event, "/type") {
                "ADDED" | "MODIFIED" => (self.notice)(object),
                "DELETED" => None,
                _ => return Ok(None),
            };
            let Some(notice) = notice else {
                self.known.remove(&uid(object));
                continue;
            };
            if self.known.insert(uid(object), notice.clone()).as_ref() != Some(&notice) {
                printer.borrow_mut().print(&[notice])?;
            }
        }
        Ok(None)
    }
}

/// Table that grows: columns never become narrower.
struct Printer {
    types: Vec<String>,
    all_namespaces: bool,
    widths: Vec<usize>,
    is_unused: bool,
}

impl Printer {
    fn new(options: &EventsOptions) -> Self {
        let namespaces = options.all_namespaces.then_some(9);
        Self {
            types: options.types.clone(),
            all_namespaces: options.all_namespaces,
            widths: namespaces.into_iter().chain(WIDTHS).collect(),
            is_unused: true,
        }
    }

    fn print(&mut self, notices: &[Notice]) -> anyhow::Result<()> {
        let is_wanted = |notice: &&Notice| self.types.is_empty() || self.types.contains(&notice.kind);
        let wanted: Vec<&Notice> = notices.iter().filter(is_wanted).collect();
        let header = (self.is_unused && !wanted.is_empty()).then(|| {
            let namespace = self.all_namespaces.then_some("NAMESPACE");
            namespace.into_iter().chain(HEADER).map(str::to_owned).collect()
        });
        self.is_unused &= wanted.is_empty();
        let rows = wanted.into_iter().map(|notice| {
            let cells = [
                &notice.time,
                &notice.kind,
                &notice.reason,
                &notice.object,
                &notice.message,
            ];
            let namespace = self.all_namespaces.then_some(&notice.namespace);
            let cells = namespace.into_iter().chain(cells);
            cells
                .map(|cell| terminal::harmless(&cell.trim().replace(['\n', '\t'], " ")))
                .collect()
        });
        let rows: Vec<Vec<String>> = header.into_iter().chain(rows).collect();
        for row in &rows {
            for (cell, width) in row.iter().zip(&mut self.widths) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for row in &rows {
            let padded = row.iter().enumerate().map(|(column, cell)| {
                let width = self.widths.get(column).copied().unwrap_or_default();
                format!("{cell:width$}")
            });
            terminal::line(padded.collect::<Vec<_>>().join("   ").trim_end())?;
        }
        Ok(())
    }
}

fn uid(object: &Value) -> String {
    text_at(object, "/metadata/uid").to_owned()
}

fn of_event(event: &Value) -> Notice {
    let about = |field: &str| text_at(event, &format!("/involvedObject/{field}"));
    Notice {
        time: time_of(event).to_owned(),
        namespace: text_at(event, "/metadata/namespace").to_owned(),
        kind: text_at(event, "/type").to_owned(),
        reason: text_at(event, "/reason").to_owned(),
        object: format!("{}/{}", about("kind").to_lowercase(), about("name")),
        message: text_at(event, "/message").to_owned(),
    }
}

/// A rollout that exceeds its deadline, or whose pods cannot be created: only conditions tell.
fn of_deployment(deployment: &Value) -> Option<Notice> {
    condition(deployment, "deployment", |kind, status| {
        matches!((kind, status), ("Progressing", "False") | ("ReplicaFailure", "True"))
    })
}

/// A node that is not Ready. Its Events are in the namespace `default` only.
fn of_node(node: &Value) -> Option<Notice> {
    condition(node, "node", |kind, status| kind == "Ready" && status != "True")
}

fn condition(object: &Value, kind: &str, is_bad: fn(&str, &str) -> bool) -> Option<Notice> {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array)?;
    let told = |condition: &&Value| is_bad(text_at(condition, "/type"), text_at(condition, "/status"));
    let bad = conditions.iter().find(told)?;
    Some(Notice {
        time: text_at(bad, "/lastTransitionTime").to_owned(),
        namespace: text_at(object, "/metadata/namespace").to_owned(),
        kind: "Warning".to_owned(),
        reason: text_at(bad, "/reason").to_owned(),
        object: format!("{kind}/{}", text_at(object, "/metadata/name")),
        message: text_at(bad, "/message").to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn with(conditions: &Value) -> Value {
        json!({"metadata": {"name": "a", "namespace": "n"}, "status": {"conditions": conditions}})
    }

    #[test]
    fn rollouts_and_nodes_are_noticed_while_they_fail() {
        let healthy = json!([{"type": "Progressing", "status": "True"}, {"type": "Ready", "status": "True"}]);
        assert_eq!((of_deployment(&with(&healthy)), of_node(&with(&healthy))), (None, None));
        assert_eq!(of_node(&json!({})), None);
        let late = json!([{"type": "Available", "status": "False"},
            {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "lastTransitionTime": "t"}]);
        let notice = of_deployment(&with(&late)).unwrap();
        assert_eq!(
            (notice.reason.as_str(), notice.object.as_str(), notice.time.as_str()),
            ("ProgressDeadlineExceeded", "deployment/a", "t")
        );
        let unknown = json!([{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]);
        assert_eq!(of_node(&with(&unknown)).unwrap().reason, "NodeStatusUnknown");
    }
}
