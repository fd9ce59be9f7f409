//! The newest records of the audit log, for users that may get `/ui/audit`: without `words`, or with
//! those in which all of them occur; with `changes=true`, of requests that change something.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use http::StatusCode;
use serde::{Deserialize, Serialize};

use crate::authn::identity::User;
use crate::authz::Attributes;
use crate::request::failure::Failure;
use crate::request::query::Query;
use crate::server::shared::Shared;
use crate::transport::respond::{self, Response};

/// Path for authorization.
const PATH: &str = "/ui/audit";
/// Bytes of the log that are searched, and the records in an answer.
const BYTES: u64 = 16 << 20;
const RECORDS: usize = 500;
const READS: [&str; 3] = ["get", "list", "watch"];

/// Fields of an `audit.k8s.io/v1` Event that are shown.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Brief {
    stage: String,
    request_received_timestamp: String,
    verb: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    user_agent: String,
    user: Name,
    impersonated_user: Option<Name>,
    object_ref: Option<Reference>,
    response_status: Code,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Name {
    username: String,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Reference {
    api_group: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Code {
    code: u16,
}

impl Brief {
    /// Everything that is searched, in small letters.
    fn text(&self) -> String {
        let object = self.object_ref.iter().flat_map(|own| {
            let words = [&own.api_group, &own.resource, &own.subresource, &own.namespace];
            words.into_iter().chain([&own.name])
        });
        let impersonated = self.impersonated_user.iter().map(|user| &user.username);
        let words = [&self.verb, &self.request_uri, &self.user_agent, &self.user.username];
        let words = words.into_iter().chain(object).chain(impersonated);
        let words: Vec<&str> = words.map(String::as_str).collect();
        format!("{} {}", words.join(" "), self.response_status.code).to_lowercase()
    }
}

/// Answers with the records, newest first.
pub(super) async fn answer(shared: &Shared, query: Option<&str>, user: &User) -> Result<Response, Failure> {
    shared.authorizer.check(user, &Attributes::path("get", PATH))?;
    let directory = shared.options.audit.as_ref().and_then(|sink| sink.directory());
    let Some(directory) = directory.map(Path::to_owned) else {
        return Err(Failure::bad_request("no audit log is kept"));
    };
    let query = Query::parse(query)?;
    let words = query.text("words").unwrap_or_default().to_lowercase();
    let changes = query.text("changes") == Some("true");
    let _share = shared.limits.past(&user.name).await?;
    let read = move || {
        let words: Vec<&str> = words.split_whitespace().collect();
        newest(&directory, |record| {
            let text = record.text();
            record.stage == "ResponseComplete"
                && !(changes && READS.contains(&record.verb.as_str()))
                && words.iter().all(|word| text.contains(word))
        })
    };
    let found = tokio::task::spawn_blocking(read).await.map_err(Failure::internal)?;
    let found = found.map_err(|error| Failure::internal(format!("read the audit log: {error}")))?;
    let told = serde_json::json!({ "records": found });
    Ok(respond::json(StatusCode::OK, respond::encode(&told)))
}

fn newest(directory: &Path, wanted: impl Fn(&Brief) -> bool) -> std::io::Result<Vec<Brief>> {
    let mut found = Vec::new();
    let mut left = BYTES;
    for name in ["audit.log", "audit.log.1"] {
        let mut file = match File::open(directory.join(name)) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => break,
            Err(error) => return Err(error),
        };
        let size = file.metadata()?.len();
        let begin = size.saturating_sub(left);
        file.seek(SeekFrom::Start(begin))?;
        let mut bytes = Vec::new();
        file.take(left).read_to_end(&mut bytes)?;
        left = left.saturating_sub(size);
        // The first line may be the end of one; such lines are no JSON.
        let records = bytes
            .rsplit(|byte| *byte == b'\n')
            .filter_map(|line| serde_json::from_slice::<Brief>(line).ok());
        found.extend(records.filter(&wanted).take(RECORDS - found.len()));
        if found.len() == RECORDS || left == 0 {
            break;
        }
    }
    Ok(found)
}
