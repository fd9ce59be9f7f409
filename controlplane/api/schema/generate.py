#!/usr/bin/env python3
"""Writes messages.txt, the table of every message of the Kubernetes API that the server knows.

    ./generate.py [--go-types DIR] [REGISTRY]

REGISTRY is a folder with the sources of the crates k8s-pb and k8s-openapi (default: the newest below
~/.cargo/registry/src). k8s-pb gives field numbers, types, patch keys and list types; k8s-openapi the names in JSON.
Neither tells a Go value from a Go pointer, which decides whether a zero is left out of JSON, so values.txt lists the
optional scalars that are values. --go-types writes it anew from the types.go files of a Kubernetes source tree;
fields that are not in that tree follow upstream's convention: optional strings are values, all else is a pointer.

The table has one line per message: its name, a tab, its fields in the order of upstream's struct (which k8s-pb keeps),
separated by blanks:

    NAME=NUMBER SHAPE TYPE MARKS

SHAPE is `*` for a list, `%` for a map of strings, `<` for a struct whose fields belong to its parent in JSON.
TYPE is s (string), b (bool), i (int32), l (int64), d (double), y (bytes), or one of the forms that JSON writes in their
own way: Q quantity, I int-or-string, T time, M time with microseconds, D duration, R raw JSON, F field set,
V list of strings; A, B and P a schema of a custom kind or a list of schemas, a boolean or a list of strings; or the name of a
message.
MARKS: `0` a zero is left out of JSON; `,p=KEY` patch merge key; `,p` lists of scalars that are merged;
`,r` the patch strategy retainKeys; `,w` replace; `,t=atomic|set|map:KEY:KEY` the list type (`,t=atomic` and `,t=granular` of structs
and maps: the map type); `,d=VALUE` the default of a field that is a key of a list; `,v` a struct that Go writes even
when nothing is in it, or a list, a map or a time that it then writes as null.
A line whose fields begin with the word `atomic` is of a struct that server-side apply takes as a whole.
"""

import pathlib
import re
import sys

HERE = pathlib.Path(__file__).parent
GROUPS = """admissionregistration.v1 apiextensions.v1 apiregistration.v1 apps.v1 authentication.v1 authorization.v1 autoscaling.v1 autoscaling.v2 batch.v1
certificates.v1 coordination.v1 core.v1 discovery.v1 events.v1 flowcontrol.v1 networking.v1 node.v1 policy.v1 rbac.v1
resource.v1 scheduling.v1 storage.v1""".split()
META = "apimachinery.pkg.apis.meta.v1."
SPECIAL = {
    "apimachinery.pkg.api.resource.Quantity": "Q",
    "apimachinery.pkg.util.intstr.IntOrString": "I",
    META + "Time": "T",
    META + "MicroTime": "M",
    META + "Duration": "D",
    META + "FieldsV1": "F",
    META + "Verbs": "V",
    "apimachinery.pkg.runtime.RawExtension": "R",
    "api.apiextensions.v1.JSON": "R",
    "api.apiextensions.v1.JSONSchemaPropsOrArray": "A",
    "api.apiextensions.v1.JSONSchemaPropsOrBool": "B",
    "api.apiextensions.v1.JSONSchemaPropsOrStringArray": "P",
}
# Of these groups only what is stored is needed.
UNWANTED = {"api.apiextensions.v1.Conversion" + name for name in ("Request", "Response", "Review")}
# What neither crate has.
OWN = """apidiscovery.v2.APIGroupDiscovery\tmetadata=1meta.v1.ObjectMeta,v versions=2*apidiscovery.v2.APIVersionDiscovery,t=map:version
apidiscovery.v2.APIGroupDiscoveryList\tmetadata=1meta.v1.ListMeta,v items=2*apidiscovery.v2.APIGroupDiscovery,v
apidiscovery.v2.APIResourceDiscovery\tresource=1s responseKind=2meta.v1.GroupVersionKind scope=3s singularResource=4s verbs=5*s,t=set,v shortNames=6*s,t=set categories=7*s,t=set subresources=8*apidiscovery.v2.APISubresourceDiscovery,t=map:subresource
apidiscovery.v2.APISubresourceDiscovery\tsubresource=1s responseKind=2meta.v1.GroupVersionKind acceptedTypes=3*meta.v1.GroupVersionKind,t=map:group:version:kind verbs=4*s,t=set,v
apidiscovery.v2.APIVersionDiscovery\tversion=1s resources=2*apidiscovery.v2.APIResourceDiscovery,t=map:resource freshness=3s0
metrics.v1beta1.ContainerMetrics\tname=1s usage=2%Q
metrics.v1beta1.NodeMetrics\tmetadata=1meta.v1.ObjectMeta,v timestamp=2T window=3D usage=4%Q
metrics.v1beta1.NodeMetricsList\tmetadata=1meta.v1.ListMeta,v items=2*metrics.v1beta1.NodeMetrics
metrics.v1beta1.PodMetrics\tmetadata=1meta.v1.ObjectMeta,v timestamp=2T window=3D containers=4*metrics.v1beta1.ContainerMetrics
metrics.v1beta1.PodMetricsList\tmetadata=1meta.v1.ListMeta,v items=2*metrics.v1beta1.PodMetrics
"""
# Fields that k8s-pb is too old for: {message: [(name, number, shape, type, {mark})]}, by upstream's generated.proto files.
NEWER = {
    "api.admissionregistration.v1.ApplyConfiguration": [("expression", 1, "", "string", {})],
    "api.admissionregistration.v1.JSONPatch": [("expression", 1, "", "string", {})],
    "api.admissionregistration.v1.MutatingAdmissionPolicy": [
        ("metadata", 1, "", META + "ObjectMeta", {}),
        ("spec", 2, "", "api.admissionregistration.v1.MutatingAdmissionPolicySpec", {})],
    "api.admissionregistration.v1.MutatingAdmissionPolicyBinding": [
        ("metadata", 1, "", META + "ObjectMeta", {}),
        ("spec", 2, "", "api.admissionregistration.v1.MutatingAdmissionPolicyBindingSpec", {})],
    "api.admissionregistration.v1.MutatingAdmissionPolicyBindingList": [
        ("metadata", 1, "", META + "ListMeta", {}),
        ("items", 2, "*", "api.admissionregistration.v1.MutatingAdmissionPolicyBinding", {})],
    "api.admissionregistration.v1.MutatingAdmissionPolicyBindingSpec": [
        ("policy_name", 1, "", "string", {}),
        ("param_ref", 2, "", "api.admissionregistration.v1.ParamRef", {}),
        ("match_resources", 3, "", "api.admissionregistration.v1.MatchResources", {})],
    "api.admissionregistration.v1.MutatingAdmissionPolicyList": [
        ("metadata", 1, "", META + "ListMeta", {}),
        ("items", 2, "*", "api.admissionregistration.v1.MutatingAdmissionPolicy", {})],
    "api.admissionregistration.v1.MutatingAdmissionPolicySpec": [
        ("param_kind", 1, "", "api.admissionregistration.v1.ParamKind", {}),
        ("match_constraints", 2, "", "api.admissionregistration.v1.MatchResources", {}),
        ("variables", 3, "*", "api.admissionregistration.v1.Variable", {"listType": "atomic"}),
        ("mutations", 4, "*", "api.admissionregistration.v1.Mutation", {"listType": "atomic"}),
        ("failure_policy", 5, "", "string", {}),
        ("match_conditions", 6, "*", "api.admissionregistration.v1.MatchCondition",
         {"patchMergeKey": "name", "patchStrategy": "merge", "listType": "map", "listMapKey": ["name"]}),
        ("reinvocation_policy", 7, "", "string", {})],
    "api.admissionregistration.v1.Mutation": [
        ("patch_type", 2, "", "string", {}),
        ("apply_configuration", 3, "", "api.admissionregistration.v1.ApplyConfiguration", {}),
        ("json_patch", 4, "", "api.admissionregistration.v1.JSONPatch", {})],
    "api.core.v1.ImageVolumeStatus": [("image_ref", 1, "", "string", {})],
    "api.core.v1.NodeAllocatableResourceClaimStatus": [
        ("resource_claim_name", 1, "", "string", {}),
        ("containers", 2, "*", "string", {"listType": "set"}),
        ("resources", 3, "%", "apimachinery.pkg.api.resource.Quantity", {})],
    "api.core.v1.PodSchedulingGroup": [("pod_group_name", 1, "", "string", {})],
    "api.core.v1.PodSpec": [("scheduling_group", 43, "", "api.core.v1.PodSchedulingGroup", {})],
    "api.core.v1.PodStatus": [
        ("node_allocatable_resource_claim_statuses", 21, "*", "api.core.v1.NodeAllocatableResourceClaimStatus",
         {"listType": "atomic"})],
    "api.core.v1.ResourceHealth": [("message", 6, "", "string", {})],
    "api.core.v1.VolumeMountStatus": [("volume_status", 5, "", "api.core.v1.VolumeStatus", {})],
    "api.core.v1.VolumeStatus": [("image", 1, "", "api.core.v1.ImageVolumeStatus", {})],
    "api.resource.v1.Device": [
        ("node_allocatable_resource_mappings", 13, "%", "api.resource.v1.NodeAllocatableResourceMapping", {})],
    "api.resource.v1.DeviceAttribute": [
        ("ints", 6, "*", "int64", {"listType": "atomic"}),
        ("bools", 7, "*", "bool", {"listType": "atomic"}),
        ("strings", 8, "*", "string", {"listType": "atomic"}),
        ("versions", 9, "*", "string", {"listType": "atomic"})],
    "api.resource.v1.NodeAllocatableResourceMapping": [
        ("capacity_key", 1, "", "string", {}),
        ("allocation_multiplier", 2, "", "apimachinery.pkg.api.resource.Quantity", {})],
    "api.storage.v1.CSIDriverSpec": [("prevent_pod_scheduling_if_missing", 11, "", "bool", {})],
    META + "ListMeta": [("shard_info", 5, "", META + "ShardInfo", {})],
    META + "ShardInfo": [("selector", 1, "", "string", {})],
}
SCALAR = {"string": "s", "bool": "b", "int32": "i", "int64": "l", "double": "d", "bytes": "y"}

# Values among the newer fields, which upstream's convention would make pointers.
VALUES = set("""api.apps.v1.StatefulSetSpec.minReadySeconds api.apps.v1.StatefulSetOrdinals.start
api.admissionregistration.v1.ValidatingAdmissionPolicyStatus.observedGeneration
api.autoscaling.v2.HorizontalPodAutoscalerStatus.currentReplicas api.core.v1.PodCondition.observedGeneration
api.core.v1.PodLogOptions.insecureSkipTLSVerifyBackend api.core.v1.PodStatus.observedGeneration
api.core.v1.VolumeMountStatus.readOnly api.flowcontrol.v1.FlowSchemaSpec.matchingPrecedence
api.flowcontrol.v1.QueuingConfiguration.queues api.flowcontrol.v1.QueuingConfiguration.handSize
api.flowcontrol.v1.QueuingConfiguration.queueLengthLimit api.flowcontrol.v1.ResourcePolicyRule.clusterScope
api.policy.v1.PodDisruptionBudgetStatus.observedGeneration""".split())

# Pointers among the newer strings: an empty one is not the same as none.
POINTERS = set("""api.admissionregistration.v1.MatchResources.matchPolicy
api.admissionregistration.v1.MutatingAdmissionPolicySpec.failurePolicy
api.admissionregistration.v1.ParamRef.parameterNotFoundAction
api.admissionregistration.v1.ValidatingAdmissionPolicySpec.failurePolicy
api.admissionregistration.v1.Validation.reason api.autoscaling.v2.HPAScalingRules.selectPolicy
api.batch.v1.CronJobSpec.timeZone api.batch.v1.JobSpec.completionMode api.batch.v1.JobSpec.podReplacementPolicy
api.batch.v1.JobSpec.managedBy api.batch.v1.JobStatus.failedIndexes
api.batch.v1.PodFailurePolicyOnExitCodesRequirement.containerName api.batch.v1.SuccessPolicyRule.succeededIndexes
api.coordination.v1.LeaseSpec.strategy api.coordination.v1.LeaseSpec.preferredHolder
api.core.v1.AppArmorProfile.localhostProfile api.core.v1.ClusterTrustBundleProjection.name
api.core.v1.ClusterTrustBundleProjection.signerName api.core.v1.Container.restartPolicy
api.core.v1.ContainerStatus.stopSignal api.core.v1.EphemeralContainerCommon.restartPolicy
api.core.v1.GRPCAction.service api.core.v1.Lifecycle.stopSignal api.core.v1.LoadBalancerIngress.ipMode
api.core.v1.PersistentVolumeClaimSpec.volumeAttributesClassName
api.core.v1.PersistentVolumeClaimStatus.currentVolumeAttributesClassName
api.core.v1.PersistentVolumeSpec.volumeAttributesClassName api.core.v1.PodLogOptions.stream
api.core.v1.PodResourceClaim.resourceClaimName api.core.v1.PodResourceClaim.resourceClaimTemplateName
api.core.v1.PodResourceClaimStatus.resourceClaimName api.core.v1.PodSecurityContext.supplementalGroupsPolicy
api.core.v1.PodSecurityContext.seLinuxChangePolicy api.core.v1.PodSpec.hostnameOverride
api.core.v1.ServiceSpec.loadBalancerClass api.core.v1.ServiceSpec.internalTrafficPolicy
api.core.v1.ServiceSpec.trafficDistribution api.core.v1.TopologySpreadConstraint.nodeAffinityPolicy
api.core.v1.TopologySpreadConstraint.nodeTaintsPolicy api.core.v1.TypedObjectReference.apiGroup
api.core.v1.TypedObjectReference.namespace api.core.v1.VolumeMount.recursiveReadOnly
api.core.v1.VolumeMountStatus.recursiveReadOnly api.discovery.v1.Endpoint.hostname api.discovery.v1.Endpoint.nodeName
api.discovery.v1.Endpoint.zone api.discovery.v1.EndpointPort.name api.discovery.v1.EndpointPort.protocol
api.discovery.v1.EndpointPort.appProtocol api.networking.v1.IngressClassParametersReference.apiGroup
api.networking.v1.IngressClassParametersReference.scope api.networking.v1.IngressClassParametersReference.namespace
api.networking.v1.IngressPortStatus.error api.policy.v1.PodDisruptionBudgetSpec.unhealthyPodEvictionPolicy
api.core.v1.PodSchedulingGroup.podGroupName api.core.v1.ResourceHealth.message
api.resource.v1.AllocatedDeviceStatus.shareID api.resource.v1.Device.nodeName api.resource.v1.DeviceAttribute.string
api.resource.v1.DeviceAttribute.version api.resource.v1.DeviceClassSpec.extendedResourceName
api.resource.v1.DeviceConstraint.distinctAttribute api.resource.v1.DeviceConstraint.matchAttribute
api.resource.v1.DeviceRequestAllocationResult.shareID api.resource.v1.NodeAllocatableResourceMapping.capacityKey
api.resource.v1.ResourceSliceSpec.nodeName""".split())

# Structs that are Go values, besides those named metadata, spec and status: {field: messages}.
VALUE_STRUCTS = {
    "template": """apps.v1.DaemonSetSpec apps.v1.DeploymentSpec apps.v1.ReplicaSetSpec apps.v1.StatefulSetSpec
        batch.v1.JobSpec core.v1.PodTemplate""",
    "strategy": "apps.v1.DeploymentSpec",
    "updateStrategy": "apps.v1.DaemonSetSpec apps.v1.StatefulSetSpec",
    "jobTemplate": "batch.v1.CronJobSpec",
    "scaleTargetRef": "autoscaling.v1.HorizontalPodAutoscalerSpec autoscaling.v2.HorizontalPodAutoscalerSpec",
    "loadBalancer": "core.v1.ServiceStatus networking.v1.IngressStatus",
    "names": "apiextensions.v1.CustomResourceDefinitionSpec",
    "acceptedNames": "apiextensions.v1.CustomResourceDefinitionStatus",
    "daemonEndpoints": "core.v1.NodeStatus",
    "nodeInfo": "core.v1.NodeStatus",
    "kubeletEndpoint": "core.v1.NodeDaemonEndpoints",
    "resources": "core.v1.Container core.v1.EphemeralContainerCommon core.v1.PersistentVolumeClaimSpec",
    "source": "core.v1.Event storage.v1.VolumeAttachmentSpec",
    "involvedObject": "core.v1.Event",
    "regarding": "events.v1.Event",
    "deprecatedSource": "events.v1.Event",
    "podSelector": "networking.v1.NetworkPolicySpec",
    "roleRef": "rbac.v1.ClusterRoleBinding rbac.v1.RoleBinding",
    "devices": "resource.v1.ResourceClaimSpec",
    "pool": "resource.v1.ResourceSliceSpec",
    "priorityLevelConfiguration": "flowcontrol.v1.FlowSchemaSpec",
}

# Messages that are atomic wherever they stand; filled in by read_messages.
ATOMIC = set()


def registry(argv):
    if argv:
        return pathlib.Path(argv[0])
    return sorted((pathlib.Path.home() / ".cargo/registry/src").iterdir())[-1]


def newest(folder, crate):
    return sorted(folder.glob(crate + "-[0-9]*"))[-1] / "src"


def flat(name):
    return re.sub(r"_|r#|[$-]", "", name).lower()


def with_upstream_names(messages, names):
    """k8s-pb writes CsiDriver where upstream writes CSIDriver: the messages under upstream's names."""
    upstream = {flat(name): name for name in names}

    def name_of(name):
        if flat(name) in upstream:
            return upstream[flat(name)]
        if name.endswith("List") and flat(name)[:-4] in upstream:
            return upstream[flat(name)[:-4]] + "List"
        return name

    return {name_of(message): [(*field[:3], name_of(field[3]), field[4]) for field in fields] for message, fields in messages.items()}


def own(name):
    """The groups of custom kinds and of the aggregation layer stand outside the others."""
    return re.sub(r"^(apiextensions.apiserver|kube.aggregator)\.pkg\.apis\.", "api.", name)


def joined(field):
    return field[1] + re.sub(r"\s+", "", field[2]) + ",\n"


def read_messages(source):
    """{full name: [(rust name, number, shape, type, {mark})]} of every message in k8s-pb."""
    messages = {}
    for file in sorted(source.rglob("mod.rs")):
        module = list(file.parent.relative_to(source).parts)
        name, comments, attribute = None, [], None
        for line in re.sub(r"(pub (?:r#)?\w+:)([^;{}#/]*?),\n(?=\s*(?:///|#\[|\}))", joined, file.read_text()).splitlines():
            line = line.strip()
            if line.startswith("///"):
                comments.append(line[3:].strip())
            elif found := re.match(r"#\[prost\((.*)\)\]", line):
                attribute = found[1]
            elif found := re.match(r"pub struct (\w+)", line):
                name = own(".".join(module + [found[1]]))
                messages[name] = []
                if "+structType=atomic" in comments:
                    ATOMIC.add(name)
                comments, attribute = [], None
            elif (found := re.match(r"pub (?:r#)?(\w+):(.*)", line)) and attribute:
                messages[name].append(read_field(module, found[1], attribute, found[2], comments))
                comments, attribute = [], None
    return messages


def read_field(module, name, attribute, rust_type, comments):
    number = int(re.search(r'tag = "(\d+)"', attribute)[1])
    kind = re.match(r"btree_map = \"string, (\w+)\"|(\w+)", attribute)
    shape = "%" if kind[1] else "*" if "repeated" in attribute else ""
    kind = kind[1] or kind[2]
    if kind == "message":
        path = re.findall(r"[\w:]+", rust_type.replace("::core::option::Option", "").replace("::prost::alloc::", ""))[-1]
        parts = path.split("::")
        base = list(module)
        while parts[0] == "super":
            parts.pop(0)
            base.pop()
        kind = own(".".join(base + parts))
    marks = {}
    for comment in comments:
        if found := re.match(r"\+(patchMergeKey|patchStrategy|listType|structType|mapType)=(\S+)", comment):
            marks[found[1]] = found[2]
        elif found := re.match(r"\+listMapKey=(\S+)", comment):
            marks.setdefault("listMapKey", []).append(found[1])
        elif found := re.match(r'\+default="(\w+)"', comment):
            marks["default"] = found[1]
    return name, number, shape, kind, marks


def read_json_names(source):
    """{full name: {flattened name: (JSON name, is required)}} of every definition in k8s-openapi."""
    names = {}
    newest_version = sorted(source.glob("v1_36"))[-1]
    for file in newest_version.rglob("*.rs"):
        text = file.read_text()
        found = re.match(r"// Generated from definition io\.k8s\.(\S+)", text)
        if not found:
            continue
        definition = own(found[1])
        fields = re.findall(r'^\s*"([^"]+)" => Field::Key_', text, re.M)
        required = set(re.findall(r'^ {16}"([^"]+)",$', text[text.find('"required": ['):], re.M)) if '"required": [' in text else set()
        names[definition] = {flat(field): (field, field in required) for field in fields}
    return names


def read_go_values(folder):
    """Optional scalars that are Go values, and all scalars seen: sets of "group.version.Message.jsonName"."""
    values, seen = set(), set()
    for file in sorted(folder.glob("staging/src/k8s.io/*/**/types*.go")):
        parts = file.parent.relative_to(folder / "staging/src/k8s.io").parts
        prefix = (META if "meta" in parts else "api." + ".".join(parts[1:]) + "." if parts[0] == "api"
                  else f"api.{parts[-2]}.v1." if parts[0] in ("apiextensions-apiserver", "kube-aggregator") and parts[-1] == "v1" else None)
        if not prefix:
            continue
        message = None
        for line in file.read_text().splitlines():
            if found := re.match(r"type (\w+) struct", line):
                message = found[1]
            elif message and (found := re.match(r'\s+\w+\s+(\S+)\s+`.*json:"([^",]+)(,omitempty)?', line)):
                if found[1].startswith(("[]", "map[")):
                    continue
                field = f"{prefix}{message}.{found[2]}"
                seen.add(field)
                if found[3] and not found[1].startswith("*"):
                    values.add(field)
    return values, seen


def inlined_names(messages, kind, theirs):
    """The flattened names of kind's fields when all of them are fields of the struct that has `theirs`, else none."""
    names = []
    for field in messages.get(kind, []):
        inner = [flat(field[0])] if flat(field[0]) in (theirs or {}) else inlined_names(messages, field[3], theirs)
        if not inner:
            return []
        names += inner
    return names


def camel(name, known):
    if flat(name) in known:
        return known[flat(name)]
    head, *rest = name.removeprefix("r#").split("_")
    return head + "".join(part[:1].upper() + part[1:] for part in rest)


def marks_text(marks, shape):
    text = ""
    strategy = marks.get("patchStrategy", "").split(",")
    if "merge" in strategy:
        text += ",p=" + marks["patchMergeKey"] if "patchMergeKey" in marks else ",p"
    if "retainKeys" in strategy:
        text += ",r"
    if "replace" in strategy:
        text += ",w"
    list_type = marks.get("listType") if shape == "*" else marks.get("structType", marks.get("mapType"))
    if list_type == "map":
        list_type = ":".join(["map"] + marks.get("listMapKey", []))
    if list_type:
        text += ",t=" + list_type
    return text


# Optional lists that Go nevertheless writes when they are empty.
WRITTEN_LISTS = set("""apiextensions.v1.CustomResourceDefinitionStatus.conditions
apiextensions.v1.CustomResourceDefinitionStatus.storedVersions autoscaling.v2.HorizontalPodAutoscalerStatus.currentMetrics core.v1.ContainerImage.names
core.v1.ProjectedVolumeSource.sources discovery.v1.EndpointSlice.endpoints discovery.v1.EndpointSlice.ports
rbac.v1.ClusterRole.rules rbac.v1.Role.rules storage.v1.CSINodeDriver.topologyKeys""".split())


# Times that are Go values: `omitempty` leaves none of them out. Those of metadata are pointers, or have `omitzero`.
WRITTEN_TIMES = {
    "deprecatedFirstTimestamp": "events.v1.Event",
    "deprecatedLastTimestamp": "events.v1.Event",
    "eventTime": "core.v1.Event events.v1.Event",
    "finishedAt": "core.v1.ContainerStateTerminated",
    "firstTimestamp": "core.v1.Event",
    "lastHeartbeatTime": "core.v1.NodeCondition",
    "lastObservedTime": "core.v1.EventSeries events.v1.EventSeries",
    "lastProbeTime": "batch.v1.JobCondition core.v1.PersistentVolumeClaimCondition core.v1.PodCondition",
    "lastTimestamp": "core.v1.Event",
    "lastTransitionTime": """apiextensions.v1.CustomResourceDefinitionCondition apiregistration.v1.APIServiceCondition apps.v1.DaemonSetCondition apps.v1.DeploymentCondition apps.v1.ReplicaSetCondition
        apps.v1.StatefulSetCondition autoscaling.v2.HorizontalPodAutoscalerCondition batch.v1.JobCondition
        certificates.v1.CertificateSigningRequestCondition core.v1.NamespaceCondition core.v1.NodeCondition
        core.v1.PersistentVolumeClaimCondition core.v1.PodCondition core.v1.ReplicationControllerCondition
        flowcontrol.v1.FlowSchemaCondition flowcontrol.v1.PriorityLevelConfigurationCondition meta.v1.Condition""",
    "lastUpdateTime": "apps.v1.DeploymentCondition certificates.v1.CertificateSigningRequestCondition",
    "startedAt": "core.v1.ContainerStateRunning core.v1.ContainerStateTerminated",
    "time": "storage.v1.VolumeError",
}


def always_written(message, json, shape, code, required):
    """Whether Go writes the struct, list, map or time even when it is empty."""
    if shape:
        return shape != "<" and (required or f"{message}.{json}" in WRITTEN_LISTS)
    if code in "TM":
        return message in WRITTEN_TIMES.get(json, "").split()
    if "." not in code:
        return False
    if message == "apiextensions.v1.CustomResourceSubresources":
        return False
    return json in ("metadata", "spec", "status") or message in VALUE_STRUCTS.get(json, "").split()


def short(name):
    return name.removeprefix("api.").replace(META, "meta.v1.").replace("apimachinery.pkg.", "")


def main():
    arguments = sys.argv[1:]
    go = None
    if arguments[:1] == ["--go-types"]:
        go = pathlib.Path(arguments[1])
        arguments = arguments[2:]
    crates = registry(arguments)
    messages, names = read_messages(newest(crates, "k8s-pb")), read_json_names(newest(crates, "k8s-openapi"))
    messages = with_upstream_names(messages, names)
    for message, fields in NEWER.items():
        messages.setdefault(message, []).extend(fields)
    known = {flat(json): json for fields in names.values() for json, _ in fields.values()}
    wanted = {m for m in messages if any(m.startswith(f"api.{g}.") for g in GROUPS) or m.startswith(META)
              or m.startswith("apimachinery.pkg.runtime.")} - set(SPECIAL) - UNWANTED
    queue = list(wanted)
    while queue:
        for _, _, _, kind, _ in messages[queue.pop()]:
            if kind in messages and kind not in SPECIAL and kind not in wanted:
                wanted.add(kind)
                queue.append(kind)

    string_lists = {m for m in wanted if m.endswith(".ExtraValue")}
    keys = {}
    for fields in messages.values():
        for _, _, _, kind, marks in fields:
            keys.setdefault(kind, set()).update(marks.get("listMapKey", []))
    optional = []
    rows, unknown_here, unknown_there = [], [], []
    go_values, go_seen = read_go_values(go) if go else (None, set())
    stored = set(HERE.joinpath("values.txt").read_text().split()) if not go else set()
    for message in sorted(wanted - string_lists, key=short):
        fields, theirs = [], names.get(message)
        left = dict(theirs or {})
        for rust_name, number, shape, kind, marks in messages[message]:
            json, required = left.pop(flat(rust_name), (None, False))
            # The default of `name` is an empty one: k8s-openapi has it always, Go leaves it out.
            empty = message == "api.core.v1.LocalObjectReference"
            required = required and not empty
            if json is None:
                json = camel(rust_name, known)
                inner = inlined_names(messages, kind, theirs)
                if theirs is not None and inner and not shape:
                    shape = "<"
                    for name in inner:
                        left.pop(name, None)
                elif theirs is not None:
                    unknown_there.append(f"{message}.{json}")
                    continue
            code = "V" if kind in string_lists else SPECIAL.get(kind) or SCALAR.get(kind) or short(kind)
            zero = ""
            if not shape and code in SCALAR.values() and code != "y" and not required:
                field = f"{message}.{json}"
                newer = field in VALUES or (code == "s" and field not in POINTERS)
                value = (field in go_values if field in go_seen else newer) if go else short(field) in stored
                if value:
                    zero = "0"
                    optional.append(short(field))
            extra = marks_text(marks, shape)
            if marks.get("default") and json in keys.get(message, ()):
                extra += ",d=" + marks["default"]
            elif empty:
                extra += ",d="
            if always_written(short(message), json, shape, code, required):
                extra += ",v"
            fields.append(f"{json}={number}{shape}{code}{zero}{extra}")
        unknown_here += [f"{message}.{json}" for key, (json, _) in left.items() if json not in ("apiVersion", "kind")]
        atomic = ["atomic"] if message in ATOMIC else []
        rows.append(f"{short(message)}\t{' '.join(atomic + fields)}\n")
    rows = sorted(rows + OWN.splitlines(keepends=True))
    HERE.joinpath("messages.txt").write_text("".join(rows))
    if go:
        HERE.joinpath("values.txt").write_text("\n".join(sorted(optional)) + "\n")
    print(len(rows), "messages;", "only in k8s-pb:", unknown_there, "only in k8s-openapi:", unknown_here, sep="\n")


main()
