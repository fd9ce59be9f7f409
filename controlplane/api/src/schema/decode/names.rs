//! Names of upstream's Go types, as used in error messages.

use crate::schema::{Alternative, Field, Form, Schema, Shape};

/// Named string types: message, field, type.
const NAMED: &[&str] = &[
    "apps.v1.DaemonSetUpdateStrategy type v1.DaemonSetUpdateStrategyType",
    "apps.v1.DeploymentStrategy type v1.DeploymentStrategyType",
    "apps.v1.StatefulSetSpec podManagementPolicy v1.PodManagementPolicyType",
    "apps.v1.StatefulSetUpdateStrategy type v1.StatefulSetUpdateStrategyType",
    "batch.v1.CronJobSpec concurrencyPolicy v1.ConcurrencyPolicy",
    "batch.v1.JobSpec completionMode v1.CompletionMode",
    "batch.v1.JobSpec podReplacementPolicy v1.PodReplacementPolicy",
    "core.v1.Capabilities add v1.Capability",
    "core.v1.Capabilities drop v1.Capability",
    "core.v1.Container imagePullPolicy v1.PullPolicy",
    "core.v1.Container restartPolicy v1.ContainerRestartPolicy",
    "core.v1.Container terminationMessagePolicy v1.TerminationMessagePolicy",
    "core.v1.ContainerPort protocol v1.Protocol",
    "core.v1.EmptyDirVolumeSource medium v1.StorageMedium",
    "core.v1.HTTPGetAction scheme v1.URIScheme",
    "core.v1.HostPathVolumeSource type v1.HostPathType",
    "core.v1.LimitRangeItem type v1.LimitType",
    "core.v1.NamespaceSpec finalizers v1.FinalizerName",
    "core.v1.NamespaceStatus phase v1.NamespacePhase",
    "core.v1.NodeSelectorRequirement operator v1.NodeSelectorOperator",
    "core.v1.ObjectReference uid types.UID",
    "core.v1.PersistentVolumeClaimSpec accessModes v1.PersistentVolumeAccessMode",
    "core.v1.PersistentVolumeClaimSpec volumeMode v1.PersistentVolumeMode",
    "core.v1.PersistentVolumeSpec accessModes v1.PersistentVolumeAccessMode",
    "core.v1.PersistentVolumeSpec persistentVolumeReclaimPolicy v1.PersistentVolumeReclaimPolicy",
    "core.v1.PersistentVolumeSpec volumeMode v1.PersistentVolumeMode",
    "core.v1.PodCondition status v1.ConditionStatus",
    "core.v1.PodCondition type v1.PodConditionType",
    "core.v1.PodSecurityContext fsGroupChangePolicy v1.PodFSGroupChangePolicy",
    "core.v1.PodSecurityContext supplementalGroupsPolicy v1.SupplementalGroupsPolicy",
    "core.v1.PodSpec dnsPolicy v1.DNSPolicy",
    "core.v1.PodSpec preemptionPolicy v1.PreemptionPolicy",
    "core.v1.PodSpec restartPolicy v1.RestartPolicy",
    "core.v1.PodStatus phase v1.PodPhase",
    "core.v1.PodStatus qosClass v1.PodQOSClass",
    "core.v1.ResourceQuotaSpec scopes v1.ResourceQuotaScope",
    "core.v1.SeccompProfile type v1.SeccompProfileType",
    "core.v1.Secret type v1.SecretType",
    "core.v1.SecurityContext procMount v1.ProcMountType",
    "core.v1.ServicePort protocol v1.Protocol",
    "core.v1.ServiceSpec externalTrafficPolicy v1.ServiceExternalTrafficPolicy",
    "core.v1.ServiceSpec internalTrafficPolicy v1.ServiceInternalTrafficPolicy",
    "core.v1.ServiceSpec ipFamilies v1.IPFamily",
    "core.v1.ServiceSpec ipFamilyPolicy v1.IPFamilyPolicy",
    "core.v1.ServiceSpec sessionAffinity v1.ServiceAffinity",
    "core.v1.ServiceSpec type v1.ServiceType",
    "core.v1.Taint effect v1.TaintEffect",
    "core.v1.Toleration effect v1.TaintEffect",
    "core.v1.Toleration operator v1.TolerationOperator",
    "core.v1.TopologySpreadConstraint nodeAffinityPolicy v1.NodeInclusionPolicy",
    "core.v1.TopologySpreadConstraint nodeTaintsPolicy v1.NodeInclusionPolicy",
    "core.v1.TopologySpreadConstraint whenUnsatisfiable v1.UnsatisfiableConstraintAction",
    "core.v1.VolumeMount mountPropagation v1.MountPropagationMode",
    "core.v1.VolumeMount recursiveReadOnly v1.RecursiveReadOnlyMode",
    "meta.v1.LabelSelectorRequirement operator v1.LabelSelectorOperator",
    "meta.v1.ObjectMeta uid types.UID",
    "meta.v1.OwnerReference uid types.UID",
    "meta.v1.Preconditions uid types.UID",
    "networking.v1.HTTPIngressPath pathType v1.PathType",
    "networking.v1.NetworkPolicyPort protocol v1.Protocol",
    "networking.v1.NetworkPolicySpec policyTypes v1.PolicyType",
    "storage.v1.StorageClass reclaimPolicy v1.PersistentVolumeReclaimPolicy",
    "storage.v1.StorageClass volumeBindingMode v1.VolumeBindingMode",
];

/// `PodSpec`.
pub(super) fn of_message(schema: Schema) -> &'static str {
    schema.name().rsplit('.').next().unwrap_or_else(|| schema.name())
}

/// `v1.PodSpec`.
pub(super) fn type_of_message(schema: Schema) -> String {
    named(schema.name())
}

fn named(message: &str) -> String {
    message.split_once('.').map_or(message, |(_, rest)| rest).to_owned()
}

/// The type of the whole field: `[]v1.Container`, `map[string]string`, `v1.ResourceList`.
pub(super) fn type_of_field(schema: Schema, field: &Field) -> String {
    let one = type_of_one(schema, field);
    match field.shape {
        Shape::List => format!("[]{one}"),
        Shape::Map if field.form == Form::Quantity && schema.name().starts_with("core.v1.") => {
            "v1.ResourceList".to_owned()
        }
        Shape::Map => format!("map[string]{one}"),
        Shape::One | Shape::Inline => one,
    }
}

/// The type of one of the field's values.
pub(super) fn type_of_one(schema: Schema, field: &Field) -> String {
    let own = |row: &&str| {
        let (field_name, name) = row.rsplit_once(' ')?;
        (field_name.split_once(' ')? == (schema.name(), field.json)).then(|| name.to_owned())
    };
    if let Some(name) = NAMED.iter().find_map(own) {
        return name;
    }
    match field.form {
        Form::String => "string".to_owned(),
        Form::Bool => "bool".to_owned(),
        Form::Int32 => "int32".to_owned(),
        Form::Int64 => "int64".to_owned(),
        Form::Double => "float64".to_owned(),
        Form::Bytes => "[]uint8".to_owned(),
        Form::Quantity => "resource.Quantity".to_owned(),
        Form::IntOrString => "intstr.IntOrString".to_owned(),
        Form::Time => "v1.Time".to_owned(),
        Form::MicroTime => "v1.MicroTime".to_owned(),
        Form::Duration => "v1.Duration".to_owned(),
        Form::RawExtension => "runtime.RawExtension".to_owned(),
        Form::FieldsV1 => "v1.FieldsV1".to_owned(),
        Form::Strings => "v1.ExtraValue".to_owned(),
        Form::Alternative(Alternative::Bool) => "v1.JSONSchemaPropsOrBool".to_owned(),
        Form::Alternative(Alternative::Schemas) => "v1.JSONSchemaPropsOrArray".to_owned(),
        Form::Alternative(Alternative::Strings) => "v1.JSONSchemaPropsOrStringArray".to_owned(),
        Form::Message(message) => named(message),
    }
}
