//! Upstream's help texts of metrics. The final dot is added on output.

const TEXTS: &[(&str, &str)] = &[
    (
        "aggregator_unavailable_apiservice",
        "[ALPHA] Gauge of APIServices which are marked as unavailable broken down by APIService name",
    ),
    (
        "aggregator_unavailable_apiservice_total",
        "[ALPHA] Counter of APIServices which are marked as unavailable broken down by APIService name and reason",
    ),
    (
        "apiserver_admission_webhook_admission_duration_seconds",
        "[STABLE] Admission webhook latency histogram in seconds, identified by name and broken out for each operation and \
         API resource and type (validate or admit)",
    ),
    (
        "apiserver_admission_webhook_fail_open_count",
        "[ALPHA] Admission webhook fail open count, identified by name and broken out for each admission type (validating or \
         admit)",
    ),
    (
        "apiserver_admission_webhook_rejection_count",
        "[ALPHA] Admission webhook rejection count, identified by name and broken out for each admission type (validating or \
         admit) and operation. Additional labels specify an error type (calling_webhook_error or apiserver_internal_error if \
         an error occurred; no_error otherwise) and optionally a non-zero rejection code if the webhook rejects the request \
         with an HTTP status code (honored by the apiserver when the code is greater or equal to 400). Codes greater than 600 \
         are truncated to 600, to keep the metrics cardinality bounded",
    ),
    (
        "apiserver_admission_webhook_request",
        "[ALPHA] Admission webhook request total, identified by name and broken out for each admission type (validating or \
         admit) and operation. Additional labels specify whether the request was rejected or not and an HTTP status code. \
         Codes greater than 600 are truncated to 600, to keep the metrics cardinality bounded",
    ),
    (
        "apiserver_audit_error",
        "[ALPHA] Counter of audit events that failed to be audited properly. Plugin identifies the plugin affected by the \
         error",
    ),
    (
        "apiserver_audit_event",
        "[ALPHA] Counter of audit events generated and sent to the audit backend",
    ),
    (
        "apiserver_conversion_webhook_duration_seconds",
        "[ALPHA] Conversion webhook request latency",
    ),
    (
        "apiserver_conversion_webhook_request",
        "[ALPHA] Counter for conversion webhook requests with success/failure and failure error type",
    ),
    (
        "apiserver_crd_conversion_webhook_duration_seconds",
        "[ALPHA] CRD webhook conversion duration in seconds",
    ),
    (
        "apiserver_current_inflight_requests",
        "[STABLE] Maximal number of currently used inflight request limit of this apiserver per request kind in last second",
    ),
    (
        "apiserver_longrunning_requests",
        "[STABLE] Gauge of all active long-running apiserver requests broken out by verb, group, version, resource, scope \
         and component. Not all requests are tracked this way",
    ),
    (
        "apiserver_mutating_admission_policy_check",
        "[ALPHA] Mutation admission policy check total, labeled by policy and further identified by binding",
    ),
    (
        "apiserver_mutating_admission_policy_check_duration_seconds",
        "[ALPHA] Mutation admission latency for individual mutation expressions in seconds, labeled by policy and binding",
    ),
    (
        "apiserver_request",
        "[STABLE] Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, scope, \
         component, and HTTP response code",
    ),
    (
        "apiserver_request_duration_seconds",
        "[STABLE] Response latency distribution in seconds for each verb, dry run value, group, version, resource, \
         subresource, scope and component",
    ),
    (
        "apiserver_request_sli_duration_seconds",
        "[ALPHA] Response latency distribution (not counting webhook duration and priority & fairness queue wait times) in \
         seconds for each verb, group, version, resource, subresource, scope and component",
    ),
    (
        "apiserver_requested_deprecated_apis",
        "[STABLE] Gauge of deprecated APIs that have been requested, broken out by API group, version, resource, subresource, \
         and removed_release",
    ),
    (
        "apiserver_resource_objects",
        "[ALPHA] Number of stored objects at the time of last check split by kind. In case of a fetching error, the value \
         will be -1",
    ),
    (
        "apiserver_response_sizes",
        "[STABLE] Response size distribution in bytes for each group, version, verb, resource, subresource, scope and \
         component",
    ),
    (
        "apiserver_storage_objects",
        "[STABLE] Number of stored objects at the time of last check split by kind. In case of a fetching error, the value \
         will be -1",
    ),
    (
        "apiserver_storage_size_bytes",
        "[STABLE] Size of the storage database file physically allocated in bytes",
    ),
    (
        "apiserver_validating_admission_policy_check",
        "[BETA] Validation admission policy check total, labeled by policy and further identified by binding and enforcement \
         action taken",
    ),
    (
        "apiserver_validating_admission_policy_check_duration_seconds",
        "[BETA] Validation admission latency for individual validation expressions in seconds, labeled by policy and further \
         including binding and enforcement action taken",
    ),
    (
        "apiserver_watch_events",
        "[ALPHA] Number of events sent in watch clients",
    ),
    (
        "authenticated_user_requests",
        "[ALPHA] Counter of authenticated requests broken out by username",
    ),
    ("authentication_attempts", "[ALPHA] Counter of authenticated attempts"),
    (
        "authorization_attempts",
        "[ALPHA] Counter of authorization attempts broken down by result. It can be either 'allowed', 'denied', \
         'no-opinion' or 'error'",
    ),
    (
        "kubernetes_build_info",
        "[BETA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build \
         date, Go version, and compiler from which Kubernetes was built, and platform on which it is running",
    ),
    (
        "kubernetes_healthcheck",
        "[STABLE] This metric records the result of a single healthcheck",
    ),
    (
        "kubernetes_healthchecks",
        "[STABLE] This metric records the results of all healthcheck",
    ),
    (
        "serviceaccount_invalid_legacy_auto_token_uses",
        "[ALPHA] Cumulative invalid auto-generated legacy tokens used",
    ),
    (
        "serviceaccount_legacy_auto_token_uses",
        "[ALPHA] Cumulative auto-generated legacy tokens used",
    ),
    (
        "serviceaccount_legacy_manual_token_uses",
        "[ALPHA] Cumulative manually created legacy tokens used",
    ),
    (
        "skiff_history_archive_failing",
        "[ALPHA] 1 while superseded versions of objects cannot be archived, so that the past may end with the ledger",
    ),
];

/// Help text of a series, by its name without `_total`.
pub(super) fn help(name: &str) -> &'static str {
    let found = TEXTS.binary_search_by(|(own, _)| (*own).cmp(name)).ok();
    found.and_then(|at| TEXTS.get(at)).map_or("", |(_, text)| text)
}
