"""The Python client: typed and dynamic, watches, logs and exec.

usage: python.py KUBECONFIG IMAGE    (the image has a shell)
"""

import sys

from kubernetes import client, config, dynamic, watch
from kubernetes.client.rest import ApiException
from kubernetes.stream import stream

NAMESPACE = "python"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"


def equal(found, expected):
    if found != expected:
        raise AssertionError(f"found {found!r}, expected {expected!r}")


def refused(status, reason, call, *arguments, **options):
    try:
        answer = call(*arguments, **options)
    except ApiException as error:
        equal(error.status, status)
        if f'"reason":"{reason}"' not in error.body:
            raise AssertionError(f"{error.body} has no reason {reason}") from error
        return error.body
    raise AssertionError(f"not refused: {answer}")


def typed(core):
    core.create_namespace({"metadata": {"name": NAMESPACE}})
    metadata = client.V1ObjectMeta(name="settings", labels={"app": "web"})
    settings = client.V1ConfigMap(metadata=metadata, data={"a": "1"})
    start = core.create_namespaced_config_map(NAMESPACE, settings).metadata.resource_version
    refused(409, "AlreadyExists", core.create_namespaced_config_map, NAMESPACE, settings)
    refused(404, "NotFound", core.read_namespaced_config_map, "absent", NAMESPACE)

    patch = core.patch_namespaced_config_map
    equal(patch("settings", NAMESPACE, {"data": {"b": "2"}}).data, {"a": "1", "b": "2"})
    equal(patch("settings", NAMESPACE, [{"op": "remove", "path": "/data/b"}]).data, {"a": "1"})
    equal(patch("settings", NAMESPACE, {"data": {"c": "3"}}, _content_type=MERGE).data, {"a": "1", "c": "3"})
    whole = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"d": "4"}}
    equal(
        patch("settings", NAMESPACE, whole, _content_type=APPLY, field_manager="python").data,
        {"a": "1", "c": "3", "d": "4"},
    )
    whole["data"] = {"a": "5"}
    conflict = refused(
        409, "Conflict", patch, "settings", NAMESPACE, whole, _content_type=APPLY, field_manager="python"
    )
    if "FieldManagerConflict" not in conflict:
        raise AssertionError(conflict)

    current = core.read_namespaced_config_map("settings", NAMESPACE)
    current.data["e"] = "6"
    core.replace_namespaced_config_map("settings", NAMESPACE, current)
    refused(409, "Conflict", core.replace_namespaced_config_map, "settings", NAMESPACE, current)

    for number in range(5):
        core.create_namespaced_config_map(NAMESPACE, {"metadata": {"name": f"page-{number}"}})
    names, token = [], None
    while token != "":
        page = core.list_namespaced_config_map(
            NAMESPACE, limit=2, field_selector="metadata.name!=kube-root-ca.crt", _continue=token
        )
        names += [item.metadata.name for item in page.items]
        token = page.metadata._continue or ""
    equal(names, [f"page-{number}" for number in range(5)] + ["settings"])

    core.delete_namespaced_config_map("settings", NAMESPACE)
    seen = []
    for event in watch.Watch().stream(
        core.list_namespaced_config_map,
        NAMESPACE,
        label_selector="app=web",
        resource_version=start,
        timeout_seconds=60,
    ):
        seen.append(event["type"])
        if event["type"] == "DELETED":
            break
    equal(seen, ["MODIFIED"] * 5 + ["DELETED"])


def deleted(core, storage):
    """Deletions whose answer the client decodes as the object."""
    storage.create_storage_class({"metadata": {"name": "python"}, "provisioner": "example.com/none"})
    equal(storage.delete_storage_class("python").provisioner, "example.com/none")
    core.create_namespaced_service(NAMESPACE, {"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}})
    equal(core.delete_namespaced_service("web", NAMESPACE).spec.ports[0].port, 80)


def scaled(apps, image):
    labels = {"app": "web"}
    container = {"name": "web", "image": image, "command": ["sleep", "1000"]}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = client.V1DeploymentSpec(replicas=0, selector={"matchLabels": labels}, template=template)
    apps.create_namespaced_deployment(NAMESPACE, client.V1Deployment(metadata={"name": "web"}, spec=spec))
    equal(apps.patch_namespaced_deployment_scale("web", NAMESPACE, {"spec": {"replicas": 1}}).spec.replicas, 1)
    for event in watch.Watch().stream(apps.list_namespaced_deployment, NAMESPACE, timeout_seconds=60):
        if event["object"].status.ready_replicas == 1:
            break
    else:
        raise AssertionError(f"not ready: {apps.read_namespaced_deployment_status('web', NAMESPACE).status}")


def executed(core, image):
    container = {"name": "shell", "image": image, "command": ["sh", "-c", "echo up; sleep 1000"]}
    core.create_namespaced_pod(NAMESPACE, {"metadata": {"name": "shell"}, "spec": {"containers": [container]}})
    for event in watch.Watch().stream(core.list_namespaced_pod, NAMESPACE, timeout_seconds=60):
        pod = event["object"]
        if pod.metadata.name == "shell" and pod.status.phase == "Running":
            break
    else:
        raise AssertionError(f"not running: {core.read_namespaced_pod('shell', NAMESPACE).status}")
    equal(next(iter(watch.Watch().stream(core.read_namespaced_pod_log, "shell", NAMESPACE))), "up")
    run = {"stderr": True, "stdout": True, "tty": False, "_request_timeout": 60}
    execute = core.connect_get_namespaced_pod_exec
    # Again and again: whether frames share a TLS record is a matter of time.
    for _ in range(5):
        output = stream(execute, "shell", NAMESPACE, command=["echo", "hello"], stdin=False, **run)
        equal(output, "hello\n")
        shell = stream(execute, "shell", NAMESPACE, command=["sh"], stdin=True, _preload_content=False, **run)
        shell.write_stdin("echo out; exit 7\n")
        shell.run_forever(timeout=60)
        equal((shell.read_stdout(), shell.returncode), ("out\n", 7))
        shell.close()


def dynamically(api):
    every = dynamic.DynamicClient(api)
    secrets = every.resources.get(api_version="v1", kind="Secret")
    secrets.create({"metadata": {"name": "key"}, "stringData": {"a": "b"}}, namespace=NAMESPACE)
    whole = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key", "labels": {"by": "hand"}}}
    secrets.server_side_apply(name="key", namespace=NAMESPACE, body=whole, field_manager="dynamic")
    for event in secrets.watch(namespace=NAMESPACE, timeout=60):
        equal((event["type"], event["object"].metadata.labels.by), ("ADDED", "hand"))
        break
    equal(secrets.get(name="key", namespace=NAMESPACE).data.a, "Yg==")
    equal(secrets.delete(name="key", namespace=NAMESPACE).status, "Success")


def main():
    kubeconfig, image = sys.argv[1:]
    config.load_kube_config(kubeconfig)
    core = client.CoreV1Api()
    equal(client.VersionApi().get_code().minor, "36")
    typed(core)
    deleted(core, client.StorageV1Api())
    scaled(client.AppsV1Api(), image)
    executed(core, image)
    dynamically(client.ApiClient())
    core.delete_namespace(NAMESPACE)


main()
