//! Service accounts on a real node: tokens by stock kubectl, and a pod that speaks to the API as its account.

#![allow(clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;

use anyhow::Context as _;
use serde_json::Value;
use tests::machine::{Machine, eventually};
use tests::{images, process};

const MANIFEST: &str = "
apiVersion: v1
kind: ServiceAccount
metadata: {name: robot}
---
apiVersion: v1
kind: Secret
metadata: {name: kept, annotations: {kubernetes.io/service-account.name: robot}}
type: kubernetes.io/service-account-token
---
apiVersion: v1
kind: Pod
metadata: {name: caller}
spec:
  serviceAccountName: robot
  restartPolicy: Never
  securityContext: {runAsUser: 1000}
  containers:
  - name: caller
    image: IMAGE
    command: [sh, -c]
    args:
    - |
      cd /shared
      /bin/kubectl auth whoami -o json > whoami.json 2> whoami.err
      /bin/kubectl get pods 2> pods.err
      ls -ln /var/run/secrets/kubernetes.io/serviceaccount/..data/token > mode
      cat /var/run/secrets/kubernetes.io/serviceaccount/namespace > namespace
      cat /var/run/secrets/kubernetes.io/serviceaccount/token > token
      grep /secrets/kubernetes.io/serviceaccount /proc/mounts > mounts
      touch done
      sleep 3600
    volumeMounts:
    - {name: kubectl, mountPath: /bin/kubectl}
    - {name: shared, mountPath: /shared}
  volumes:
  - {name: kubectl, hostPath: {path: KUBECTL, type: File}}
  - {name: shared, hostPath: {path: SHARED, type: Directory}}
";

/// Returns kubectl's output with a bearer token.
fn as_bearer(machine: &Machine, token: &str, words: &[&str]) -> anyhow::Result<String> {
    let config: Value = serde_json::from_str(&machine.kubectl(["config", "view", "--raw", "-o", "json"])?)?;
    let cluster = &config["clusters"][0]["cluster"];
    let server = cluster["server"].as_str().context("the server")?;
    let empty = machine.state().join("no.kubeconfig");
    std::fs::write(&empty, "")?;
    let authority = machine.state().join("controlplane/pki/ca.crt");
    let newest = process::kubectls()?.pop().context("a kubectl")?;
    let output = machine
        .namespace()
        .command(newest)
        .env("KUBECONFIG", empty)
        .args(["--server", server, "--token", token, "--certificate-authority"])
        .arg(authority)
        .args(words)
        .output()?;
    Ok(process::both(&output))
}

#[test]
fn accounts_prove_who_they_are() -> anyhow::Result<()> {
    tests::logging();
    let machine = Machine::start("accounts")?;
    let image = images::busybox(&machine)?;
    let shared = tempfile::tempdir()?;
    std::fs::set_permissions(shared.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777))?;
    let kubectl = process::kubectls()?.pop().context("a kubectl")?.canonicalize()?;
    let manifest = MANIFEST
        .replace("IMAGE", &image)
        .replace("KUBECTL", &kubectl.display().to_string())
        .replace("SHARED", &shared.path().display().to_string());
    let file = machine.state().join("accounts.yaml");
    std::fs::write(&file, manifest)?;
    machine.kubectl(["apply", "-f", &file.display().to_string()])?;
    assert_tokens(&machine)?;
    assert_kept(&machine)?;
    assert_caller(&machine, shared.path())?;
    machine.finish()
}

fn assert_tokens(machine: &Machine) -> anyhow::Result<()> {
    let whoami = ["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"];
    for kubectl in process::kubectls()? {
        let token = process::run(machine.kubectl_command(&kubectl).args(["create", "token", "robot"]))?;
        let said = as_bearer(machine, token.trim(), &whoami)?;
        assert_eq!(said, "system:serviceaccount:default:robot", "{}", kubectl.display());
    }
    let other = machine.kubectl(["create", "token", "robot", "--audience", "vault"])?;
    let forged = format!("{}x", machine.kubectl(["create", "token", "robot"])?.trim());
    for bad in [other.trim(), &forged, "nonsense"] {
        let said = as_bearer(machine, bad, &whoami)?;
        let wanted = "error: You must be logged in to the server (Unauthorized)";
        assert!(said.contains(wanted) || said.contains("Unauthorized"), "{said}");
    }
    let said = machine.kubectl(["auth", "whoami", "-o", "jsonpath={.status.userInfo}"])?;
    assert!(
        said.contains("kubernetes-admin") && said.contains("X509SHA256="),
        "{said}"
    );
    let said = machine.kubectl([
        "--as",
        "jane",
        "--as-group",
        "dev",
        "auth",
        "whoami",
        "-o",
        "jsonpath={.status.userInfo}",
    ])?;
    assert!(
        said.contains("\"jane\"") && said.contains("[\"dev\",\"system:authenticated\"]"),
        "{said}"
    );
    Ok(())
}

/// The controller fills the Secret, and its token works until the account is gone.
fn assert_kept(machine: &Machine) -> anyhow::Result<()> {
    let token = eventually("the Secret holds a token", || {
        let said = machine.kubectl([
            "get",
            "secret",
            "kept",
            "-o",
            "go-template={{.data.token | base64decode}}",
        ]);
        said.map_err(|error| error.to_string())
    })?;
    let said = as_bearer(machine, &token, &["auth", "whoami"])?;
    assert!(said.contains("system:serviceaccount:default:robot"), "{said}");
    let held = machine.kubectl([
        "get",
        "configmap",
        "kube-root-ca.crt",
        "-n",
        "kube-system",
        "-o",
        "yaml",
    ])?;
    assert!(held.contains("BEGIN CERTIFICATE"), "{held}");
    // A modified ConfigMap is restored.
    machine.kubectl([
        "patch",
        "configmap",
        "kube-root-ca.crt",
        "-p",
        "{\"data\":{\"ca.crt\":\"x\"}}",
    ])?;
    eventually("the certificate is put right", || {
        let said = machine.kubectl(["get", "configmap", "kube-root-ca.crt", "-o", "yaml"]);
        let said = said.map_err(|error| error.to_string())?;
        if said.contains("BEGIN CERTIFICATE") {
            Ok(())
        } else {
            Err(said)
        }
    })
}

fn assert_caller(machine: &Machine, shared: &Path) -> anyhow::Result<()> {
    let read = |name: &str| std::fs::read_to_string(shared.join(name)).unwrap_or_default();
    eventually("the pod has called", || {
        if shared.join("done").exists() {
            return Ok(());
        }
        machine
            .kubectl(["describe", "pod", "caller"])
            .map_or_else(|error| Err(error.to_string()), Err)
    })?;
    let who: Value = serde_json::from_str(&read("whoami.json")).with_context(|| read("whoami.err"))?;
    let who = &who["status"]["userInfo"];
    assert_eq!(who["username"], "system:serviceaccount:default:robot");
    assert_eq!(who["extra"]["authentication.kubernetes.io/pod-name"][0], "caller");
    assert!(read("pods.err").contains("User \"system:serviceaccount:default:robot\" cannot list resource \"pods\""));
    assert_eq!(read("namespace"), "default");
    assert!(
        read("mode").starts_with("-rw------- ") && read("mode").contains(" 1000 "),
        "{}",
        read("mode")
    );
    assert!(read("mounts").contains("tmpfs"), "{}", read("mounts"));
    let token = read("token");
    assert!(as_bearer(machine, &token, &["auth", "whoami"])?.contains("caller"));
    machine.kubectl(["delete", "pod", "caller", "--grace-period=0", "--force"])?;
    let said = as_bearer(machine, &token, &["auth", "whoami"])?;
    assert!(said.contains("Unauthorized"), "a token goes with its pod: {said}");
    Ok(())
}
