//! Services on a real node: exposed Deployments are reached from pods, from the node and at its
//! ports, through rollouts, restarts and changes to the kernel's tables by other programs.

#![allow(clippy::panic, reason = "a test fails by panicking")]

use anyhow::{Context as _, ensure};
use tests::machine::{Machine, Namespace, Setup, eventually};
use tests::{images, process};

const OBJECTS: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 30
      containers:
      - name: nginx
        image: NGINX
        imagePullPolicy: Never
        ports: [{containerPort: 80}]
        readinessProbe: {httpGet: {port: 80}, periodSeconds: 1}
        lifecycle: {preStop: {sleep: {seconds: 5}}}
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: shell, image: IMAGE, imagePullPolicy: Never, command: [sleep, "100000"]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{port: 8080, targetPort: 80, nodePort: 30080}]
---
apiVersion: v1
kind: Service
metadata: {name: nobody}
spec: {selector: {app: nobody}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: by-hand}
spec: {ports: [{port: 80}]}
"#;

const BALANCED: &str = r"
apiVersion: v1
kind: Service
metadata: {name: balanced}
spec:
  type: LoadBalancer
  externalTrafficPolicy: Local
  healthCheckNodePort: 30077
  selector: {app: web}
  ports: [{port: 8081, targetPort: 80}]
---
apiVersion: v1
kind: Service
metadata: {name: rival}
spec: {type: LoadBalancer, selector: {app: web}, ports: [{port: 8081, targetPort: 80}]}
";

const SLICE: &str = r"
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: by-hand-1, labels: {kubernetes.io/service-name: by-hand}}
addressType: IPv4
ports: [{port: 80}]
endpoints: [{addresses: [ADDRESS]}]
";

/// A pod that is never ready, and Services with and without its address.
const UNREADY: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: unready, labels: {app: unready}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: shell
    image: IMAGE
    imagePullPolicy: Never
    command: [httpd, -f, -p, "8080"]
    readinessProbe: {exec: {command: ["false"]}}
---
apiVersion: v1
kind: Service
metadata: {name: unpublished}
spec: {selector: {app: unready}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: published}
spec: {publishNotReadyAddresses: true, selector: {app: unready}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: peers}
spec: {publishNotReadyAddresses: true, clusterIP: None, selector: {app: unready}, ports: [{port: 8080}]}
"#;

fn apply(machine: &Machine, objects: &str) -> anyhow::Result<()> {
    let file = machine.state().join("objects.yaml");
    std::fs::write(&file, objects)?;
    machine.kubectl(["apply", "-f", &file.display().to_string()])?;
    Ok(())
}

fn cluster_ip(machine: &Machine, service: &str) -> anyhow::Result<String> {
    let path = "jsonpath={.spec.clusterIP}";
    machine.kubectl(["get", "service", service, "-o", path])
}

/// Returns the HTTP response that a pod gets, or its error. The shell's own client is unsuitable:
/// it resolves addresses as names.
fn from_pod(machine: &Machine, address: &str) -> anyhow::Result<String> {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, "80"));
    let asked = format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 20 {host} {port}");
    machine.kubectl(["exec", "client", "--", "sh", "-c", &asked])
}

fn welcomes(text: &str) -> bool {
    text.contains("nginx")
}

fn reached(machine: &Machine, address: &str) -> anyhow::Result<()> {
    eventually(&format!("the node reaches {address}"), || {
        let text = machine.fetch(&format!("http://{address}/"));
        let text = text.map_err(|error| format!("{error:#}"))?;
        if welcomes(&text) { Ok(()) } else { Err(text) }
    })
}

/// `skiff why` of Services, and of the way from a pod to them.
fn tells_the_way(machine: &Machine) -> anyhow::Result<()> {
    let why = |words: &[&str]| {
        let said = machine.skiff(["why"].iter().chain(words).copied());
        said.map_err(|error| format!("{error:#}"))
    };
    // The first endpoint of two is enough to be reached.
    eventually("both endpoints and the Service are found well", || {
        let said = why(&["service/web"])?;
        if !said.contains("nothing is wrong") {
            return Err(said);
        }
        let said = why(&["pod/client", "--reach", "service/web:8080"])?;
        let words = ["it is reached", "by the name web.", "Its address"];
        let well = said.matches("accepts connections").count() == 3 && words.iter().all(|word| said.contains(word));
        well.then_some(()).ok_or(said)
    })?;
    for (arguments, words) in [
        (&["why", "service/nobody"][..], "app=nobody"),
        (&["why", "pod/client", "--reach", "service/nobody"], "app=nobody"),
        (&["why", "pod/client", "--reach", "pod/client:9"], "Nothing listens"),
    ] {
        let said = machine.skiff(arguments.iter().copied());
        let said = format!("{:#}", said.err().context("there is something wrong")?);
        ensure!(said.contains(words), "{words:?} is not in: {said}");
    }
    Ok(())
}

#[test]
fn exposed_deployments_are_reached_whatever_happens() -> anyhow::Result<()> {
    let machine = Machine::start("services")?;
    let (busybox, nginx) = (images::busybox(&machine)?, images::nginx(&machine)?);
    apply(&machine, &OBJECTS.replace("NGINX", &nginx).replace("IMAGE", &busybox))?;
    machine.kubectl(["rollout", "status", "deployment/web", "--timeout=60s"])?;
    machine.kubectl(["wait", "pod/client", "--for=condition=Ready", "--timeout=60s"])?;
    let web = format!("{}:8080", cluster_ip(&machine, "web")?);
    reached(&machine, &web)?;
    reached(&machine, "172.30.0.1:30080")?;
    tells_the_way(&machine)?;
    for address in [web.as_str(), "172.30.0.1:30080"] {
        ensure!(welcomes(&from_pod(&machine, address)?), "from a pod to {address}");
    }
    let nobody = from_pod(&machine, &cluster_ip(&machine, "nobody")?);
    let refusal = format!("{:#}", nobody.err().context("nobody answers")?);
    ensure!(refusal.contains("Connection refused"), "{refusal}");

    publishes_what_is_not_ready(&machine, &busybox)?;

    let by_hand = cluster_ip(&machine, "by-hand")?;
    let pod = "jsonpath={.items[0].status.podIP}";
    let pod = machine.kubectl(["get", "pods", "-l", "app=web", "-o", pod])?;
    apply(&machine, &SLICE.replace("ADDRESS", &pod))?;
    reached(&machine, &by_hand)?;

    // The API server itself.
    let asked = "nc -w 20 $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT </dev/null && echo reached";
    let server = machine.kubectl(["exec", "client", "--", "sh", "-c", asked])?;
    ensure!(server.trim() == "reached", "{server}");

    rolls_without_loss(&machine, &web)?;
    survives(&machine, &web)?;
    machine.kubectl(["delete", "service", "web"])?;
    eventually("nothing leads to what is deleted", || {
        match machine.fetch(&format!("http://{web}/")) {
            Ok(text) => Err(text),
            Err(_) => Ok(()),
        }
    })?;
    machine.finish()
}

#[test]
fn balanced_services_answer_at_the_nodes_addresses() -> anyhow::Result<()> {
    let words = ["--load-balancer-addresses".to_owned(), "nodes".to_owned()];
    let setup = Setup {
        words: &words,
        ..Setup::default()
    };
    let machine = Machine::start_with(Namespace::new("balanced")?, setup)?;
    let (busybox, nginx) = (images::busybox(&machine)?, images::nginx(&machine)?);
    apply(&machine, &OBJECTS.replace("NGINX", &nginx).replace("IMAGE", &busybox))?;
    apply(&machine, BALANCED)?;
    let given = "--for=jsonpath={.status.loadBalancer.ingress[0].ip}=172.30.0.1";
    machine.kubectl(["wait", "service/balanced", given, "--timeout=60s"])?;
    machine.kubectl(["rollout", "status", "deployment/web", "--timeout=60s"])?;
    machine.kubectl(["wait", "pod/client", "--for=condition=Ready", "--timeout=60s"])?;
    reached(&machine, "172.30.0.1:8081")?;
    ensure!(welcomes(&from_pod(&machine, "172.30.0.1:8081")?), "from a pod");
    eventually("a balancer is told of the endpoints here", || {
        let health = machine.fetch("http://172.30.0.1:30077/healthz");
        let health = health.map_err(|error| format!("{error:#}"))?;
        let counted = health.contains("\"localEndpoints\": 2");
        if counted { Ok(()) } else { Err(health) }
    })?;

    // A node port belongs to a single Service.
    let told = machine.kubectl(["get", "service", "rival", "-o", "jsonpath={.status.loadBalancer}"])?;
    ensure!(told.trim() == "{}", "{told}");
    eventually("the other one is told why", || {
        let events = machine.kubectl(["get", "events", "--field-selector=involvedObject.name=rival"]);
        let events = events.map_err(|error| format!("{error:#}"))?;
        let because = "port 8081/TCP of the nodes is that of service default/balanced";
        if events.contains(because) { Ok(()) } else { Err(events) }
    })?;
    machine.kubectl(["delete", "service", "balanced"])?;
    let rival = "service/rival";
    machine.kubectl(["wait", rival, given, "--timeout=60s"])?;
    machine.skiff(["up"])?;
    reached(&machine, "172.30.0.1:8081")?;
    machine.finish()
}

/// A pod that is not ready is reached by the Services that publish it, and by no other.
fn publishes_what_is_not_ready(machine: &Machine, image: &str) -> anyhow::Result<()> {
    apply(machine, &UNREADY.replace("IMAGE", image))?;
    // The first is by the cluster's address, the second by the pod's.
    for place in ["published", "peers:8080"] {
        let page = format!("http://{place}/etc/hostname");
        eventually(&format!("a pod reaches {place}"), || {
            let text = machine.kubectl(["exec", "client", "--", "wget", "-q", "-O", "-", &page]);
            let text = text.map_err(|error| format!("{error:#}"))?;
            if text.trim() == "unready" { Ok(()) } else { Err(text) }
        })?;
    }
    let ready = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
    let ready = machine.kubectl(["get", "pod", "unready", "-o", ready])?;
    ensure!(ready == "False", "{ready}");
    let unpublished = from_pod(machine, &cluster_ip(machine, "unpublished")?);
    let refusal = format!("{:#}", unpublished.err().context("nobody answers")?);
    ensure!(refusal.contains("Connection refused"), "{refusal}");
    Ok(())
}

/// No request fails during a rollout.
fn rolls_without_loss(machine: &Machine, web: &str) -> anyhow::Result<()> {
    let (host, port) = web.split_once(':').context("a port")?;
    let asking = format!(
        "i=0; while [ $i -lt 150 ]; do
             printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 20 {host} {port} | grep -q nginx || echo lost
             i=$((i+1)); usleep 20000
         done; echo done"
    );
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| machine.kubectl(["exec", "client", "--", "sh", "-c", &asking]));
        machine.kubectl(["rollout", "restart", "deployment/web"])?;
        machine.kubectl(["rollout", "status", "deployment/web", "--timeout=60s"])?;
        let told = asking
            .join()
            .map_err(|_panic| anyhow::anyhow!("the client panicked"))??;
        ensure!(told.trim() == "done", "{told}");
        Ok(())
    })
}

/// The rules outlive the agent, and are restored after a flush.
fn survives(machine: &Machine, web: &str) -> anyhow::Result<()> {
    let flush = |what: &str| process::run(machine.namespace().command("nft").args(what.split(' ')));
    flush("flush ruleset")?;
    reached(machine, web)?;
    reached(machine, "172.30.0.1:30080")?;
    machine.kill("skiff-agent")?;
    ensure!(welcomes(&machine.fetch(&format!("http://{web}/"))?), "without an agent");
    ensure!(
        welcomes(&machine.fetch("http://172.30.0.1:30080/")?),
        "without an agent"
    );
    machine.skiff(["up"])?;
    reached(machine, web)?;
    Ok(())
}

const BOTH: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: both}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: shell, image: IMAGE, imagePullPolicy: Never, command: [httpd, -f, -p, "8080"]}
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: shell, image: IMAGE, imagePullPolicy: Never, command: [sleep, "100000"]}
---
apiVersion: v1
kind: Service
metadata: {name: both}
spec:
  type: NodePort
  ipFamilyPolicy: RequireDualStack
  selector: {app: both}
  ports: [{port: 8081, targetPort: 8080, nodePort: 30081}]
"#;

#[test]
fn services_of_both_families_answer_in_either() -> anyhow::Result<()> {
    let namespace = Namespace::new("both")?;
    for words in [
        "-6 addr add fd00:30::1/64 dev up0 nodad",
        "-6 route add default via fd00:30::fe",
    ] {
        process::run(namespace.command("ip").args(words.split(' ')))?;
    }
    let words = ["--pod-cidr", "10.244.0.0/24,fd00:10:244::/64"].map(str::to_owned);
    let setup = Setup {
        words: &words,
        ..Setup::default()
    };
    let machine = Machine::start_with(namespace, setup)?;
    apply(&machine, &BOTH.replace("IMAGE", &images::busybox(&machine)?))?;
    machine.kubectl(["wait", "pod", "--all", "--for=condition=Ready", "--timeout=60s"])?;
    let addresses = ["get", "service", "both", "-o", "jsonpath={.spec.clusterIPs[*]}"];
    let addresses = machine.kubectl(addresses)?;
    let (four, six) = addresses.split_once(' ').context("two addresses")?;
    let cluster = [format!("{four}:8081"), format!("[{six}]:8081")];
    let nodes = ["172.30.0.1:30081".to_owned(), "[fd00:30::1]:30081".to_owned()];
    for place in cluster.iter().chain(&nodes) {
        let page = format!("http://{place}/etc/hostname");
        eventually(&format!("the node reaches {place}"), || {
            let text = machine.fetch(&page);
            let text = text.map_err(|error| format!("{error:#}"))?;
            if text.trim() == "web" { Ok(()) } else { Err(text) }
        })?;
        let text = machine.kubectl(["exec", "client", "--", "wget", "-q", "-O", "-", &page])?;
        ensure!(text.trim() == "web", "from a pod to {place}: {text}");
    }
    eventually("both addresses are found by name", || {
        let named = machine.kubectl(["exec", "client", "--", "nslookup", "both.default.svc.cluster.local"]);
        let named = named.map_err(|error| format!("{error:#}"))?;
        let both = named.contains(four) && named.contains(six);
        both.then_some(()).ok_or(named)
    })?;

    let single = r#"{"spec": {"ipFamilyPolicy": "SingleStack"}}"#;
    machine.kubectl(["patch", "service", "both", "-p", single])?;
    eventually("the second address leads nowhere", || {
        match machine.fetch(&format!("http://[{six}]:8081/etc/hostname")) {
            Ok(text) => Err(text),
            Err(_) => Ok(()),
        }
    })?;
    machine.fetch(&format!("http://{four}:8081/etc/hostname"))?;
    machine.finish()
}

const SIX: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: six}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: shell, image: IMAGE, imagePullPolicy: Never, command: [httpd, -f, -p, "8080"]}
---
apiVersion: v1
kind: Service
metadata: {name: six}
spec: {selector: {app: six}, ports: [{port: 8081, targetPort: 8080}]}
"#;

/// On a machine whose own network has no IPv6.
#[test]
fn pods_with_ipv6_alone_reach_the_api_server_and_usual_services() -> anyhow::Result<()> {
    let words = ["--pod-cidr", "fd00:10:244::/64"].map(str::to_owned);
    let setup = Setup {
        words: &words,
        ..Setup::default()
    };
    let machine = Machine::start_with(Namespace::new("six")?, setup)?;
    apply(&machine, &SIX.replace("IMAGE", &images::busybox(&machine)?))?;
    machine.kubectl(["wait", "pod", "--all", "--for=condition=Ready", "--timeout=60s"])?;
    let six = cluster_ip(&machine, "six")?;
    ensure!(six.starts_with("fd00:10:96::"), "{six}");
    for asked in [
        "nc -w 2 $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT </dev/null",
        "wget -q -O - http://six:8081/etc/hostname",
    ] {
        eventually(asked, || {
            let said = machine.kubectl(["exec", "web", "--", "sh", "-c", asked]);
            said.map(drop).map_err(|error| format!("{error:#}"))
        })?;
    }
    machine.finish()
}
