//! Kubeconfig files: the server's address and the client's credentials.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::Identity;

/// A kubeconfig for `user` at the server's URL, with everything embedded. It holds a private key.
pub fn kubeconfig(server: &str, authority: &str, user: &str, identity: &Identity) -> String {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let (server, user) = (quoted(server), quoted(user));
    let authority = STANDARD.encode(authority);
    let certificate = STANDARD.encode(&identity.certificate);
    let key = STANDARD.encode(&identity.key);
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: kubernetes
  cluster:
    server: {server}
    certificate-authority-data: {authority}
users:
- name: {user}
  user:
    client-certificate-data: {certificate}
    client-key-data: {key}
contexts:
- name: kubernetes
  context:
    cluster: kubernetes
    user: {user}
current-context: kubernetes
"
    )
}
