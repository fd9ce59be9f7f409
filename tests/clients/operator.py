"""An operator on kopf: a definition with a rule, a Deployment for each object, a finalizer, status, events, and a validating
webhook with a certificate of its own.

usage: KUBECONFIG=… operator.py IMAGE ADDRESS    (the image has `sleep`; the API server reaches this process at the address)
"""

import datetime
import ipaddress
import os
import sys
import tempfile
import threading
import time

import kopf
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from kubernetes import client, config
from kubernetes.client.rest import ApiException

GROUP, VERSION, PLURAL = "example.com", "v1", "sleepers"
NAMESPACE = "kopf"
TIMEOUT = 60
IMAGE = ""


def equal(found, expected):
    if found != expected:
        raise AssertionError(f"found {found!r}, expected {expected!r}")


def eventually(what, look):
    """The first answer that is not None; errors and the last look are told when none comes."""
    end = time.monotonic() + TIMEOUT
    while True:
        try:
            found, last = look()
        except (ApiException, AssertionError) as error:
            found, last = None, error
        if found is not None:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"not {what}: {last}")
        time.sleep(0.05)


def definition():
    integer = {"type": "integer", "minimum": 0}
    spec = {
        "type": "object",
        "required": ["replicas"],
        "properties": {"replicas": integer, "most": integer | {"default": 3}},
        "x-kubernetes-validations": [{"rule": "self.replicas <= self.most", "message": "more than the most"}],
    }
    status = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": status}}},
        "subresources": {"status": {}},
    }
    return {
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": PLURAL, "singular": "sleeper", "kind": "Sleeper"},
            "versions": [version],
        },
    }


def certificate(address, folder):
    """A certificate that signs itself, for one address."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "operator")])
    now = datetime.datetime.now(datetime.timezone.utc)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    files = {
        "certificate": signed.public_bytes(pem),
        "key": key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain),
    }
    for file, content in files.items():
        with open(os.path.join(folder, file), "wb") as opened:
            opened.write(content)
    return os.path.join(folder, "certificate"), os.path.join(folder, "key")


def deployment(name, replicas):
    labels = {"sleeper": name}
    container = {"name": "sleep", "image": IMAGE, "command": ["sleep", "100000"]}
    pod = {"terminationGracePeriodSeconds": 0, "containers": [container]}
    template = {"metadata": {"labels": labels}, "spec": pod}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def handlers(address, folder):
    chain, key = certificate(address, folder)

    @kopf.on.startup()
    def begin(settings, **_):
        settings.admission.server = kopf.WebhookServer(
            addr=address, port=9443, host=address, certfile=chain, pkeyfile=key, cafile=chain
        )
        settings.admission.managed = "operator.example.com"

    @kopf.on.validate(PLURAL)
    def check(name, warnings, **_):
        warnings.append("the operator has looked at it")
        if name.startswith("un"):
            raise kopf.AdmissionError(f"{name} is no good name", code=409)

    @kopf.on.create(PLURAL, id="create")
    def create(name, namespace, spec, body, **_):
        child = deployment(name, spec["replicas"])
        kopf.adopt(child)
        client.AppsV1Api().create_namespaced_deployment(namespace, child)
        kopf.info(body, reason="Made", message=f"{spec['replicas']} of {spec['most']}")
        return {"replicas": spec["replicas"]}

    @kopf.on.update(PLURAL, id="update", field="spec.replicas")
    def update(name, namespace, new, **_):
        client.AppsV1Api().patch_namespaced_deployment_scale(name, namespace, {"spec": {"replicas": new}})
        return {"replicas": new}

    @kopf.on.delete(PLURAL)
    def delete(name, namespace, **_):
        client.CoreV1Api().create_namespaced_config_map(namespace, {"metadata": {"name": f"{name}-was-here"}})


def refused(call, expected):
    try:
        answer = call()
    except ApiException as error:
        if expected not in error.body:
            raise AssertionError(error.body) from error
        return error.status
    raise AssertionError(f"not refused: {answer}")


def play():
    """What a user of the operator does."""
    core, apps, custom = client.CoreV1Api(), client.AppsV1Api(), client.CustomObjectsApi()
    place = (GROUP, VERSION, NAMESPACE, PLURAL)

    def make(name, **spec):
        body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "Sleeper", "metadata": {"name": name}, "spec": spec}
        return custom.create_namespaced_custom_object(*place, body)

    hook = "the configuration of the webhook"
    hooks = client.AdmissionregistrationV1Api()
    eventually(hook, lambda: (hooks.read_validating_webhook_configuration("operator.example.com").webhooks, None))
    unfit = "denied the request: unfit is no good name"
    eventually("refused by the webhook", lambda: (refused(lambda: make("unfit", replicas=1), unfit), None))
    equal(refused(lambda: make("many", replicas=4), "more than the most"), 422)
    equal(make("two", replicas=2)["spec"]["most"], 3)

    def ready(count):
        found = apps.read_namespaced_deployment("two", NAMESPACE).status
        return (found if found.ready_replicas == count else None), found

    def told(key, count):
        found = custom.get_namespaced_custom_object(*place, "two")
        return (found if found.get("status", {}).get(key) == {"replicas": count} else None), found

    eventually("two ready", lambda: ready(2))
    found = eventually("told in the status", lambda: told("create", 2))
    equal(found["metadata"]["finalizers"], ["kopf.zalando.org/KopfFinalizerMarker"])
    reasons = lambda: {event.reason for event in core.list_namespaced_event(NAMESPACE).items}
    eventually("told in an event", lambda: (True if "Made" in reasons() else None, reasons()))

    custom.patch_namespaced_custom_object(*place, "two", {"spec": {"replicas": 1}})
    eventually("told in the status", lambda: told("update/spec.replicas", 1))
    eventually("one ready", lambda: ready(1))
    custom.delete_namespaced_custom_object(*place, "two")

    def gone():
        left = [custom.list_namespaced_custom_object(*place)["items"], apps.list_namespaced_deployment(NAMESPACE).items]
        return (None if any(left) else True), left

    eventually("gone", gone)
    core.read_namespaced_config_map("two-was-here", NAMESPACE)


def main():
    global IMAGE
    IMAGE, address = sys.argv[1:]
    config.load_kube_config()
    definitions = client.ApiextensionsV1Api()
    client.CoreV1Api().create_namespace({"metadata": {"name": NAMESPACE}})
    definitions.create_custom_resource_definition(definition())
    stop, failed = threading.Event(), []
    with tempfile.TemporaryDirectory() as folder:
        handlers(address, folder)
        words = {"namespaces": [NAMESPACE], "stop_flag": stop, "standalone": True}

        def operate():
            try:
                kopf.run(**words)
            except BaseException as error:
                failed.append(error)

        operator = threading.Thread(target=operate)
        operator.start()
        try:
            play()
        finally:
            stop.set()
            operator.join(TIMEOUT)
    equal(failed, [])
    definitions.delete_custom_resource_definition(f"{PLURAL}.{GROUP}")
    client.CoreV1Api().delete_namespace(NAMESPACE)


main()
