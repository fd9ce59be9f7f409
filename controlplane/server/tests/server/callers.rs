//! Callers besides service accounts: anonymous users, joining nodes, and impersonators.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::Api;
use crate::support::served::{now, serve};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use controlplane_server::authn::identity::MASTERS;
use http::{Method, StatusCode};
use serde_json::{Value, json};

async fn start() -> Api {
    let api = Api::start().await;
    api.account("default", "robot").await;
    api
}

async fn token(api: &Api) -> String {
    let path = "/api/v1/namespaces/default/serviceaccounts/robot/token";
    let answer = api.post(path, &json!({})).await;
    assert_eq!(answer.code, StatusCode::CREATED, "{}", answer.text());
    answer.json()["status"]["token"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn nobody_in_particular_is_anonymous() {
    let api = start().await;
    let answer = api.outside(Method::GET, "/api/v1/pods", &[], &Value::Null).await;
    assert_eq!(answer.code.as_u16(), 403);
    assert_eq!(
        answer.message(),
        "pods is forbidden: User \"system:anonymous\" cannot list resource \"pods\" in API group \"\" at the cluster scope"
    );
    // Other schemes than bearer tokens do not authenticate, and are not rejected either.
    let basic = [("authorization", "Basic YTpi")];
    let answer = api.outside(Method::GET, "/healthz", &basic, &Value::Null).await;
    assert_eq!(answer.code.as_u16(), 200);
}

#[tokio::test]
async fn others_can_check_tokens_by_themselves() {
    let api = start().await;
    let found = api.get("/.well-known/openid-configuration").await.json();
    assert_eq!(found["issuer"], "https://kubernetes.default.svc.cluster.local");
    assert!(found["jwks_uri"].as_str().unwrap().ends_with("/openid/v1/jwks"));
    let keys = api.get("/openid/v1/jwks").await;
    assert_eq!(keys.headers["content-type"], "application/jwk-set+json");
    let keys = keys.json();
    let header: Value = serde_json::from_slice(
        &URL_SAFE_NO_PAD
            .decode(token(&api).await.split('.').next().unwrap())
            .unwrap(),
    )
    .unwrap();
    assert_eq!(keys["keys"][0]["kid"], header["kid"]);
    assert_eq!(keys["keys"][0]["alg"], "ES256");
}

#[tokio::test]
async fn who_may_acts_as_somebody_else() {
    let api = start().await;
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}).to_string();
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let json_type = ("content-type", "application/json");
    let headers = [
        json_type,
        ("impersonate-user", "jane"),
        ("impersonate-group", "dev"),
        ("impersonate-group", "ops"),
        ("impersonate-uid", "7"),
        ("impersonate-extra-acme.com%2fproject", "x"),
    ];
    let answer = api.request(Method::POST, path, &headers, review.clone()).await;
    assert_eq!(
        answer.json()["status"]["userInfo"],
        json!({"username": "jane", "uid": "7", "groups": ["dev", "ops", "system:authenticated"],
            "extra": {"acme.com/project": ["x"]}})
    );
    let headers = [json_type, ("impersonate-user", "system:serviceaccount:default:robot")];
    let answer = api.request(Method::POST, path, &headers, review.clone()).await;
    assert_eq!(
        answer.json()["status"]["userInfo"]["groups"],
        json!([
            "system:serviceaccounts",
            "system:serviceaccounts:default",
            "system:authenticated"
        ])
    );
    // An impersonator has the rights of the impersonated user, not its own.
    let headers = [("impersonate-user", "jane")];
    let answer = api.request(Method::GET, "/api/v1/nodes", &headers, "").await;
    assert_eq!(answer.code.as_u16(), 403);
    assert!(
        answer.message().contains("User \"jane\" cannot list"),
        "{}",
        answer.message()
    );
    let headers = [("impersonate-group", "dev")];
    let answer = api.request(Method::GET, "/api/v1/nodes", &headers, "").await;
    assert_eq!(answer.code.as_u16(), 400);
    assert_eq!(
        answer.message(),
        "requested &user.DefaultInfo{Name:\"\", UID:\"\", Groups:[]string{\"dev\"}, Extra:map[string][]string(nil)} \
         without impersonating a user name"
    );

    let bearer = format!("Bearer {}", token(&api).await);
    let headers = [
        ("authorization", bearer.as_str()),
        ("impersonate-user", "kubernetes-admin"),
        ("impersonate-group", MASTERS),
    ];
    let answer = api.outside(Method::GET, "/api/v1/nodes", &headers, &Value::Null).await;
    assert_eq!(answer.code.as_u16(), 403);
    assert_eq!(
        answer.message(),
        "nodes is forbidden: User \"system:serviceaccount:default:robot\" cannot impersonate-on:user-info:list resource \
         \"nodes\" in API group \"\" at the cluster scope"
    );
}

#[tokio::test(start_paused = true)]
async fn new_nodes_come_with_a_token_from_a_secret() {
    let api = start().await;
    let secret = |id: &str, extra: &[(&str, &str)]| {
        let mut data =
            json!({"token-id": id, "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true"});
        for (name, value) in extra {
            data[*name] = (*value).into();
        }
        json!({"metadata": {"name": format!("bootstrap-token-{id}")}, "type": "bootstrap.kubernetes.io/token", "stringData": data})
    };
    for body in [
        secret(
            "aaaaaa",
            &[(
                "auth-extra-groups",
                "system:bootstrappers:worker,system:bootstrappers:x",
            )],
        ),
        secret("bbbbbb", &[("usage-bootstrap-authentication", "false")]),
        secret("cccccc", &[("expiration", "2026-01-02T04:00:00Z")]),
        secret("dddddd", &[("auth-extra-groups", "system:masters")]),
    ] {
        let made = api.post("/api/v1/namespaces/kube-system/secrets", &body).await;
        assert_eq!(made.code, StatusCode::CREATED, "{}", made.text());
    }
    let user = api.whoami("aaaaaa.0123456789abcdef").await.unwrap();
    assert_eq!(user["username"], "system:bootstrap:aaaaaa");
    assert_eq!(
        user["groups"],
        json!([
            "system:bootstrappers",
            "system:bootstrappers:worker",
            "system:bootstrappers:x",
            "system:authenticated"
        ])
    );
    assert!(api.whoami("cccccc.0123456789abcdef").await.is_ok());
    tokio::time::advance(Duration::from_hours(1)).await;
    for bad in [
        "aaaaaa.0123456789abcdee",
        "bbbbbb.0123456789abcdef",
        "cccccc.0123456789abcdef",
        "dddddd.0123456789abcdef",
        "eeeeee.0123456789abcdef",
        "aaaaaa.",
    ] {
        assert!(api.whoami(bad).await.is_err(), "{bad}");
    }
}

/// Runs openssl in a folder, and returns its output.
fn openssl(folder: &std::path::Path, words: &str, input: &str) -> String {
    let mut process = Command::new("openssl")
        .args(words.split(' '))
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("openssl, of the package of that name");
    process.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = process.wait_with_output().unwrap();
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// `crypto/x509` and `crypto/tls` know P-521, which ring lacks.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_p521_is_certified_and_its_holder_is_known() {
    let served = serve(|transport| transport).await;
    let home = tempfile::tempdir().unwrap();
    let made =
        "req -new -newkey ec -pkeyopt ec_paramgen_curve:P-521 -nodes -keyout key -subj /O=system:masters/CN=jane";
    let request = openssl(home.path(), made, "");
    let begin = request.find("-----BEGIN").unwrap_or_else(|| panic!("{request}"));
    let request = api::certificate::Request::parse(&request.as_bytes()[begin..]).unwrap();
    let signed = served
        .pki
        .sign(&request, &["client auth".to_owned()], None, now())
        .unwrap();
    std::fs::write(home.path().join("signed"), signed).unwrap();
    std::fs::write(home.path().join("authority"), served.pki.authority()).unwrap();
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}).to_string();
    let ask = format!(
        "POST /apis/authentication.k8s.io/v1/selfsubjectreviews HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{review}",
        review.len()
    );
    for version in ["-tls1_2", "-tls1_3"] {
        let words = format!(
            "s_client -quiet -connect {} -servername localhost -CAfile authority -cert signed -key key {version}",
            served.address
        );
        let (folder, ask) = (home.path().to_owned(), ask.clone());
        let asked = tokio::task::spawn_blocking(move || openssl(&folder, &words, &ask));
        let told = asked.await.unwrap();
        assert!(told.contains(r#""username":"jane""#), "{version}: {told}");
    }
}
