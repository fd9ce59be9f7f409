//! Reads of past revisions through the API: only by users that may read the same objects now.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use controlplane_server::ops::audit::file::{FileSink, Limits};
use http::{Method, Request};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::definitions::{DEFINITIONS, TABS, define, eventually, started, tab, tabs};
use crate::support::rights::{as_user, binding, give, jane, role, user};
use crate::support::{Answer, Api, START, config_map, pod};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";

fn revision(answer: &Answer) -> String {
    answer.json()["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .to_owned()
}

fn names(list: &Answer) -> Vec<String> {
    let list = list.json();
    let items = list["items"].as_array().unwrap_or_else(|| panic!("{list}")).iter();
    items
        .map(|item| item["metadata"]["name"].as_str().unwrap().to_owned())
        .collect()
}

fn labelled(name: &str, label: &str) -> Value {
    let mut object = config_map(name);
    object["metadata"]["labels"] = json!({"app": label});
    object
}

#[tokio::test]
async fn objects_and_lists_are_shown_as_they_were() {
    let api = Api::start().await;
    let made = revision(&api.post(CONFIG_MAPS, &labelled("a", "old")).await);
    let second = revision(&api.post(CONFIG_MAPS, &labelled("b", "old")).await);
    let path = format!("{CONFIG_MAPS}/a");
    let merge = "merge-patch+json";
    let changed = api
        .patch(&path, merge, &json!({"metadata": {"labels": {"app": "new"}}}))
        .await;
    assert_eq!(changed.code, 200, "{}", changed.text());
    let changed = revision(&changed);
    api.delete(&path, "").await;
    assert_eq!(api.get(&path).await.code, 404);
    for (at, label) in [(&made, "old"), (&second, "old"), (&changed, "new")] {
        let then = api.get(&format!("{path}?at={at}")).await;
        assert_eq!(then.json()["metadata"]["labels"]["app"], label, "{at}: {}", then.text());
    }
    assert_eq!(names(&api.get(&format!("{CONFIG_MAPS}?at={made}")).await), ["a"]);
    let list = api.get(&format!("{CONFIG_MAPS}?at={second}")).await;
    assert_eq!(
        (names(&list), revision(&list)),
        (vec!["a".into(), "b".into()], second.clone())
    );
    let selected = api
        .get(&format!("{CONFIG_MAPS}?at={changed}&labelSelector=app%3Dold"))
        .await;
    assert_eq!(names(&selected), ["b"]);
    let field = api
        .get(&format!("{CONFIG_MAPS}?at={changed}&fieldSelector=metadata.name%3Da"))
        .await;
    assert_eq!(names(&field), ["a"]);
    let page = api.get(&format!("{CONFIG_MAPS}?at={second}&limit=1")).await;
    assert_eq!(
        (names(&page), page.json()["metadata"]["remainingItemCount"].clone()),
        (vec!["a".into()], json!(1))
    );
    let token = page.json()["metadata"]["continue"].as_str().unwrap().to_owned();
    let rest = api
        .get(&format!("{CONFIG_MAPS}?at={second}&limit=1&continue={token}"))
        .await;
    assert_eq!(
        (names(&rest), rest.json()["metadata"]["continue"].clone()),
        (vec!["b".into()], Value::Null)
    );
}

#[tokio::test(start_paused = true)]
async fn ages_are_those_of_the_revision_that_is_shown() {
    let api = Api::start().await;
    let at = revision(&api.post(CONFIG_MAPS, &config_map("a")).await);
    tokio::time::advance(Duration::from_hours(3)).await;
    let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    for path in [
        format!("{CONFIG_MAPS}/a?at={at}"),
        format!("{CONFIG_MAPS}?at={at}&limit=5"),
    ] {
        let then = api.request(Method::GET, &path, &table, "").await.json();
        let cells = then["rows"][0]["cells"].as_array().unwrap();
        assert_eq!(cells.last(), Some(&json!("0s")), "{path}: {then}");
    }
}

#[tokio::test]
async fn the_versions_of_an_object_outlive_it() {
    let api = Api::start().await;
    let path = format!("{CONFIG_MAPS}/a");
    for data in ["one", "two"] {
        let mut object = config_map("a");
        object["data"] = json!({"key": data});
        assert_eq!(api.post(CONFIG_MAPS, &object).await.code, 201);
        assert_eq!(api.delete(&path, "").await.code, 200);
    }
    let history = api.get(&format!("{path}?history=10")).await.json();
    let brief: Vec<(Value, Value)> = history["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| (item["object"]["data"]["key"].clone(), item["deleted"].clone()))
        .collect();
    assert_eq!(brief, [(json!("two"), json!(true)), (json!("one"), json!(true))]);
    let newest = history["items"][0]["resourceVersion"].as_str().unwrap();
    let older = api.get(&format!("{path}?history=1&before={newest}")).await.json();
    assert_eq!(older["items"][0]["object"]["data"]["key"], "one");
    assert_eq!(api.get(&format!("{CONFIG_MAPS}/never?history=10")).await.code, 404);
}

#[tokio::test]
async fn who_may_not_read_now_does_not_see_what_was() {
    let api = Api::start().await;
    let secret =
        |name: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": {"a": "YQ=="}});
    api.post(SECRETS, &secret("own")).await;
    let at = revision(&api.post(SECRETS, &secret("other")).await);
    api.delete(&format!("{SECRETS}/other"), "").await;
    let rules = json!([
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["own"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]},
    ]);
    give(&api, "default", "roles", &role("Role", "r", &rules)).await;
    let bound = binding("RoleBinding", "b", "Role/r", &user("jane"));
    give(&api, "default", "rolebindings", &bound).await;
    let ask = async |path: String| as_user(&api, &jane(), "GET", &path, &Value::Null).await.code.as_u16();
    assert_eq!(ask(format!("{SECRETS}/own?at={at}")).await, 200);
    assert_eq!(ask(format!("{SECRETS}/own?history=5")).await, 200);
    for path in [
        format!("{SECRETS}/other?at={at}"),
        format!("{SECRETS}/other?history=5"),
        format!("{SECRETS}?at={at}"),
        format!("/api/v1/secrets?at={at}"),
        format!("{CONFIG_MAPS}/kube-root-ca.crt?at={at}"),
        format!("/api/v1/configmaps?at={at}"),
    ] {
        assert_eq!(ask(path.clone()).await, 403, "{path}");
    }
    // The right to read may itself be of the past alone.
    assert_eq!(ask(format!("{CONFIG_MAPS}?at={at}")).await, 200);
    api.delete(
        "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings/b",
        "",
    )
    .await;
    assert_eq!(ask(format!("{SECRETS}/own?at={at}")).await, 403);
}

/// Deletes a namespace with what is in it, as its controller does.
async fn end(api: &Api, namespace: &str, objects: &[&str]) {
    let path = format!("/api/v1/namespaces/{namespace}");
    assert_eq!(api.delete(&path, "").await.code, 200);
    for object in objects {
        assert_eq!(api.delete(&format!("{path}/{object}"), "").await.code, 200, "{object}");
    }
    let mut ended = api.get(&path).await.json();
    ended["spec"]["finalizers"] = json!([]);
    assert_eq!(api.put(&format!("{path}/finalize"), &ended).await.code, 200);
    assert_eq!(api.get(&path).await.code, 404);
}

/// Lets jane get and list resources in a namespace.
async fn let_in(api: &Api, namespace: &str, group: &str, resources: &[&str]) {
    let rules = json!([{"apiGroups": [group], "resources": resources, "verbs": ["get", "list"]}]);
    let name = resources[0];
    give(api, namespace, "roles", &role("Role", name, &rules)).await;
    let bound = binding("RoleBinding", name, &format!("Role/{name}"), &user("jane"));
    give(api, namespace, "rolebindings", &bound).await;
}

#[tokio::test]
async fn a_namespace_that_was_made_again_does_not_show_what_the_one_before_it_held() {
    let api = Api::start().await;
    let team = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}});
    let secrets = "/api/v1/namespaces/team/secrets";
    let secret =
        |data: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}, "data": {"a": data}});
    api.post("/api/v1/namespaces", &team).await;
    let theirs = revision(&api.post(secrets, &secret("b2xk")).await);
    end(&api, "team", &["secrets/key"]).await;
    api.post("/api/v1/namespaces", &team).await;
    let own = revision(&api.post(secrets, &secret("bmV3")).await);
    let_in(&api, "team", "", &["secrets", "namespaces"]).await;
    let ask = async |path: String| as_user(&api, &jane(), "GET", &path, &Value::Null).await;
    assert_eq!(ask(format!("{secrets}/key?at={theirs}")).await.code, 404);
    assert_eq!(names(&ask(format!("{secrets}?at={theirs}")).await), [""; 0]);
    assert_eq!(ask(format!("/api/v1/namespaces/team?at={theirs}")).await.code, 404);
    let history = ask(format!("{secrets}/key?history=9")).await.json();
    let data: Vec<&Value> = history["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| &item["object"]["data"]["a"])
        .collect();
    assert_eq!(data, ["bmV3"]);
    assert_eq!(ask(format!("{secrets}/key?at={own}")).await.json()["data"]["a"], "bmV3");
    assert_eq!(names(&ask(format!("{secrets}?at={own}")).await), ["key"]);
    let jane_then = [("impersonate-user", "jane")];
    let impersonated = api
        .request(Method::GET, &format!("{secrets}/key?at={theirs}"), &jane_then, "")
        .await;
    assert_eq!(impersonated.code, 404, "{}", impersonated.text());
    // To read them in all namespaces is to read them in those that are gone, too.
    let rules = json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]);
    give(&api, "", "clusterroles", &role("ClusterRole", "all", &rules)).await;
    give(
        &api,
        "",
        "clusterrolebindings",
        &binding("ClusterRoleBinding", "all", "ClusterRole/all", &user("jane")),
    )
    .await;
    let then = ask(format!("{secrets}/key?at={theirs}")).await;
    assert_eq!(then.json()["data"]["a"], "b2xk", "{}", then.text());
    assert_eq!(
        names(&ask(format!("{secrets}?at={theirs}")).await),
        [""; 0],
        "she may not list them"
    );
}

#[tokio::test]
async fn a_definition_that_was_made_again_does_not_show_objects_of_the_one_before_it() {
    let api = started().await;
    let theirs = revision(&api.post(TABS, &tab("old", &json!({}))).await);
    let healed = api.server.clone();
    let mut upkeep = JoinSet::new();
    upkeep.spawn(async move { healed.heal().await });
    assert_eq!(
        api.delete(&format!("{DEFINITIONS}/tabs.example.com"), "").await.code,
        200
    );
    eventually(&api, &format!("{DEFINITIONS}/tabs.example.com"), |answer| {
        answer.code == 404
    })
    .await;
    define(&api, &tabs()).await;
    let own = revision(&api.post(TABS, &tab("new", &json!({}))).await);
    let_in(&api, "default", "example.com", &["tabs"]).await;
    let ask = async |path: String| as_user(&api, &jane(), "GET", &path, &Value::Null).await;
    assert_eq!(names(&api.get(&format!("{TABS}?at={theirs}")).await), ["old"]);
    assert_eq!(names(&ask(format!("{TABS}?at={theirs}")).await), [""; 0]);
    assert_eq!(ask(format!("{TABS}/old?at={theirs}")).await.code, 404);
    assert_eq!(ask(format!("{TABS}/old?history=9")).await.code, 404);
    assert_eq!(names(&ask(format!("{TABS}?at={own}")).await), ["new"]);
}

#[tokio::test(start_paused = true)]
async fn who_reads_the_past_slowly_does_not_shut_others_out() {
    let api = Api::start().await;
    let at = revision(&api.post(CONFIG_MAPS, &config_map("a")).await);
    let_in(&api, "default", "", &["configmaps"]).await;
    let path = format!("{CONFIG_MAPS}?at={at}");
    let mut unread = Vec::new();
    for _ in 0..3 {
        let request = Request::get(&path).body(Body::empty()).unwrap();
        unread.push(api.send_as(jane(), request).await);
    }
    let codes: Vec<u16> = unread.iter().map(|answer| answer.status().as_u16()).collect();
    assert_eq!(codes, [200, 200, 429]);
    assert_eq!(api.get(&path).await.code, 200, "another user");
    unread.clear();
    assert_eq!(as_user(&api, &jane(), "GET", &path, &Value::Null).await.code, 200);
}

#[tokio::test]
async fn what_cannot_be_asked_of_the_past_is_refused() {
    let api = Api::start().await;
    let at = revision(&api.post(CONFIG_MAPS, &config_map("a")).await);
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    for (path, wanted) in [
        (
            format!("{CONFIG_MAPS}/a?at=999999"),
            "revision 999999 has not been reached",
        ),
        (format!("{CONFIG_MAPS}/a?at=tomorrow"), "at must be a revision, a time"),
        (
            format!("{CONFIG_MAPS}/a?at=2999-01-01T00:00:00Z"),
            "at is in the future",
        ),
        (
            format!("{CONFIG_MAPS}/a?at=18446744073709551616"),
            "at must be a revision",
        ),
        (
            format!("{CONFIG_MAPS}/a?at={at}&resourceVersion=1"),
            "exclude each other",
        ),
        (
            format!("{CONFIG_MAPS}?watch=true&at={at}"),
            "at and history are for reading objects",
        ),
        (format!("{CONFIG_MAPS}?history=3"), "history is of one object"),
        (
            format!("{CONFIG_MAPS}/a?history=3&at={at}"),
            "at and history are for reading objects",
        ),
        (format!("{CONFIG_MAPS}/a?history=some"), "parsing \"some\""),
        (
            format!("{leases}?at={at}"),
            "the past of leases.coordination.k8s.io is not kept",
        ),
    ] {
        let answer = api.get(&path).await;
        assert_eq!(answer.code, 400, "{path}: {}", answer.text());
        assert!(answer.message().contains(wanted), "{path}: {}", answer.message());
    }
    assert_eq!(api.get(&format!("{CONFIG_MAPS}/never?at={at}")).await.code, 404);
    let before = api.get(&format!("{CONFIG_MAPS}/a?at=1")).await;
    assert_eq!(before.code, 404, "nothing is compacted yet: {}", before.text());
    // A write is not made in the past.
    assert_eq!(api.delete(&format!("{CONFIG_MAPS}/a?at={at}"), "").await.code, 400);
}

#[tokio::test]
async fn the_audit_log_is_shown_to_those_who_may_get_its_path() {
    let directory = tempfile::tempdir().unwrap();
    let sink = FileSink::open(directory.path(), Limits::default(), None).unwrap();
    let sink = Arc::new(sink);
    let given = Arc::clone(&sink);
    let api = Api::start_with(|mut options| {
        options.audit = Some(given);
        options
    })
    .await;
    api.post(CONFIG_MAPS, &config_map("Wanted")).await;
    api.post(CONFIG_MAPS, &config_map("other")).await;
    api.post(CONFIG_MAPS, &config_map("wanted")).await;
    api.get(&format!("{CONFIG_MAPS}/wanted")).await;
    let refused = as_user(&api, &jane(), "GET", "/ui/audit", &Value::Null).await;
    assert_eq!(refused.code, 403, "{}", refused.text());
    // Everything is in the file by now.
    sink.close();
    let shown = async |query: &str| {
        let answer = api.get(&format!("/ui/audit?{query}")).await.json();
        let records = answer["records"]
            .as_array()
            .unwrap_or_else(|| panic!("{answer}"))
            .clone();
        let brief = records.iter().map(|record| {
            format!(
                "{} {} {}",
                record["verb"], record["objectRef"]["name"], record["responseStatus"]["code"]
            )
        });
        brief.collect::<Vec<_>>()
    };
    let changes = [r#""create" "wanted" 201"#, r#""create" "Wanted" 422"#];
    assert_eq!(shown("changes=true&words=configmaps%20WANTED").await, changes);
    let all = shown("words=wanted").await;
    assert_eq!(all.len(), 3, "{all:?}");
    assert!(all[0].contains("get"), "newest first: {all:?}");
    assert!(shown("words=jane%20403").await[0].contains("get"));
}

#[tokio::test]
async fn usage_over_time_is_shown_since_the_creation_to_those_who_may_see_it_now() {
    let directory = tempfile::tempdir().unwrap();
    let measures = Arc::new(store::Measures::beside(&directory.path().join("skiff.db")));
    let given = Arc::clone(&measures);
    let api = Api::start_with(|mut options| {
        options.measures = Some(given);
        options
    })
    .await;
    api.post("/api/v1/namespaces/default/pods", &pod("a")).await;
    // Five seconds before the pod was created, by the minute.
    let minute = START.parse::<Timestamp>().unwrap().as_second() - 5;
    for number in -5..3 {
        let round = [("pods/default/a".to_owned(), 12, 1 << 20)];
        measures.add(minute + number * 60, &round).unwrap();
    }
    let path = "/ui/measures/apis/metrics.k8s.io/v1beta1/namespaces/default/pods";
    let one = format!("{path}/a");
    let told = api.get(&one).await;
    let expected = json!([[minute + 60, 12, 1 << 20], [minute + 120, 12, 1 << 20]]);
    assert_eq!(told.json()["samples"], expected, "{}", told.text());
    assert_eq!(api.get(&format!("{path}/b")).await.code, 404);
    assert_eq!(api.get(path).await.code, 405);
    let refused = as_user(&api, &jane(), "GET", &one, &Value::Null).await;
    assert_eq!(refused.code, 403, "{}", refused.text());
    let rules = json!([{"apiGroups": ["metrics.k8s.io"], "resources": ["pods"], "verbs": ["get"]}]);
    give(&api, "default", "roles", &role("Role", "usage", &rules)).await;
    let bound = binding("RoleBinding", "usage", "Role/usage", &user("jane"));
    give(&api, "default", "rolebindings", &bound).await;
    assert_eq!(as_user(&api, &jane(), "GET", &one, &Value::Null).await.code, 200);
}
