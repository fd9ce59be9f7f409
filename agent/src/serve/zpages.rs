//! `/configz`, `/statusz` and `/flagz`: configuration, state and flags in a kubelet's terms.

use std::sync::Arc;

use agent_plan::node::eviction::{Amount, Threshold};
use agent_plan::node::reserve::Amounts;
use api::duration;
use api::zpages::{Answer, NOT_ACCEPTABLE, Page, Status};
use axum::Json;
use axum::extract::State;
use axum::http::header::{ACCEPT, CONTENT_TYPE, WARNING};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::metrics::own::began;
use crate::context::Context;
use crate::node::VERSION;

/// Folders of the kubelet's endpoints.
const FOLDERS: [&str; 13] = [
    "/attach",
    "/configz",
    "/containerLogs",
    "/exec",
    "/flagz",
    "/healthz",
    "/logs",
    "/metrics",
    "/pods",
    "/portForward",
    "/runningpods",
    "/stats",
    "/statusz",
];

pub(super) async fn configz(State(context): State<Arc<Context>>) -> Json<Value> {
    Json(json!({"kubeletconfig": configuration(&context)}))
}

fn configuration(context: &Context) -> Value {
    let config = &context.config;
    let upkeep = &config.upkeep;
    let dns = context.names.cluster(&config.dns);
    let time = |milliseconds: i64| duration::text(milliseconds.saturating_mul(1_000_000));
    let thresholds = |hard: bool, value: fn(&Threshold) -> Option<Value>| -> Map<String, Value> {
        let chosen = upkeep.thresholds.all.iter().filter(|own| (own.grace == 0) == hard);
        let each = chosen.filter_map(|own| Some((own.signal.name().to_owned(), value(own)?)));
        each.collect()
    };
    let amount = |own: &Threshold| Some(json!(told(own.value)));
    let reclaim = [true, false]
        .into_iter()
        .flat_map(|hard| thresholds(hard, |own| Some(json!(told(own.reclaim?)))));
    let reclaim: Map<String, Value> = reclaim.collect();
    let reserved = upkeep.reserved.iter().map(texts).collect::<Vec<_>>();
    json!({
        "kind": "KubeletConfiguration",
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "enableServer": true,
        "port": config.port,
        "readOnlyPort": 0,
        "authentication": {"anonymous": {"enabled": false}, "webhook": {"enabled": true, "cacheTTL": "2m0s"}},
        "authorization": {
            "mode": "Webhook",
            "webhook": {"cacheAuthorizedTTL": "5m0s", "cacheUnauthorizedTTL": "30s"},
        },
        "enableDebuggingHandlers": true,
        "enableSystemLogHandler": true,
        "enableSystemLogQuery": false,
        "enableProfilingHandler": false,
        "maxPods": config.max_pods,
        "podPidsLimit": upkeep.pod_pids.unwrap_or(-1),
        "clusterDNS": dns.servers,
        "clusterDomain": dns.domain,
        "cpuManagerPolicy": "none",
        "memoryManagerPolicy": "None",
        "topologyManagerPolicy": "none",
        "cgroupsPerQOS": true,
        "enforceNodeAllocatable": if upkeep.enforce { ["pods"] } else { ["none"] },
        "kubeReserved": reserved.first(),
        "systemReserved": reserved.get(1),
        "evictionHard": thresholds(true, amount),
        "evictionSoft": thresholds(false, amount),
        "evictionSoftGracePeriod": thresholds(false, |own| Some(json!(format!("{}s", own.grace / 1000)))),
        "evictionMinimumReclaim": reclaim,
        "evictionPressureTransitionPeriod": time(upkeep.thresholds.transition),
        "evictionMaxPodGracePeriod": upkeep.thresholds.longest_grace,
        "imageGCHighThresholdPercent": upkeep.images.high,
        "imageGCLowThresholdPercent": upkeep.images.low,
        "imageMinimumGCAge": time(upkeep.images.youth),
        "shutdownGracePeriod": time(config.shutdown.total.saturating_mul(1000)),
        "shutdownGracePeriodCriticalPods": time(config.shutdown.critical.saturating_mul(1000)),
        "serializeImagePulls": false,
        "maxParallelImagePulls": crate::PULLS,
        "containerLogMaxSize": "10Mi",
        "containerLogMaxFiles": 5,
        "nodeLeaseDurationSeconds": 40,
        "imagePullCredentialsVerificationPolicy": "NeverVerifyPreloadedImages",
    })
}

/// Formats an amount as an operator writes it.
fn told(amount: Amount) -> String {
    match amount {
        Amount::Quantity(quantity) => quantity.to_text().0,
        Amount::Share(thousandths) if thousandths % 1000 == 0 => format!("{}%", thousandths / 1000),
        Amount::Share(thousandths) => format!("{}.{:03}%", thousandths / 1000, thousandths % 1000),
    }
}

fn texts(amounts: &Amounts) -> Map<String, Value> {
    let each = amounts
        .iter()
        .map(|(name, amount)| (name.clone(), json!(amount.to_text())));
    each.collect()
}

pub(super) async fn statusz(State(context): State<Arc<Context>>, headers: HeaderMap) -> Response {
    let now = context.now();
    let status = Status {
        started: began().unwrap_or(now),
        now,
        go_version: "none",
        version: VERSION,
        emulation: "1.36",
        paths: &FOLDERS.map(str::to_owned),
    };
    answer(&Page::Statusz(status), &headers)
}

pub(super) async fn flagz(State(context): State<Arc<Context>>, headers: HeaderMap) -> Response {
    answer(&Page::Flagz(&context.config.flags), &headers)
}

fn answer(page: &Page<'_>, headers: &HeaderMap) -> Response {
    let accept = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    match page.answer("kubelet", accept) {
        None => (StatusCode::NOT_ACCEPTABLE, NOT_ACCEPTABLE).into_response(),
        Some(Answer::Text(text)) => text.into_response(),
        Some(Answer::Object { object, json, warning }) => {
            let (media, body) = if json {
                ("application/json", format!("{object}\n"))
            } else {
                ("application/yaml", api::yaml::emit::document(&object))
            };
            let mut response = ([(CONTENT_TYPE, media)], body).into_response();
            let warning = warning.and_then(|text| HeaderValue::try_from(format!("299 - {text:?}")).ok());
            if let Some(warning) = warning {
                response.headers_mut().insert(WARNING, warning);
            }
            response
        }
    }
}

#[cfg(test)]
mod tests {
    use agent_plan::node::eviction::Thresholds;

    use super::*;

    #[test]
    fn amounts_are_told_as_they_are_written() {
        let text = "memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<2.5%,pid.available<1k";
        let all = Thresholds::parse(text, "", "", "").unwrap();
        let all = all
            .iter()
            .map(|own| format!("{}<{}", own.signal.name(), told(own.value)));
        let mut all: Vec<String> = all.collect();
        all.sort();
        assert_eq!(
            all,
            [
                "memory.available<100Mi",
                "nodefs.available<10%",
                "nodefs.inodesFree<2.500%",
                "pid.available<1k"
            ]
        );
    }

    #[test]
    fn flags_are_told_in_the_form_that_the_client_asks_for() {
        let flags = [("max-pods".to_owned(), "110".to_owned())];
        let ask = |accept: &str| {
            let accept = HeaderValue::try_from(accept).unwrap();
            let response = answer(&Page::Flagz(&flags), &HeaderMap::from_iter([(ACCEPT, accept)]));
            let header = |name| {
                response
                    .headers()
                    .get(name)
                    .map(|value| value.to_str().unwrap().to_owned())
            };
            (response.status().as_u16(), header(CONTENT_TYPE), header(WARNING))
        };
        let text = Some("text/plain; charset=utf-8".to_owned());
        assert_eq!(ask("*/*"), (200, text.clone(), None));
        assert_eq!(ask("image/png"), (406, text, None));
        let old = "299 - \"This version of the flagz endpoint is deprecated. Please use a newer version.\"";
        for (version, warning) in [("v1alpha1", Some(old.to_owned())), ("v1beta1", None)] {
            for media in ["application/json", "application/yaml"] {
                let accept = format!("{media};g=config.k8s.io;v={version};as=Flagz");
                assert_eq!(ask(&accept), (200, Some(media.to_owned()), warning.clone()));
            }
        }
        assert!(
            Page::Flagz(&flags)
                .answer("kubelet", [])
                .is_some_and(|page| matches!(page, Answer::Text(text) if text.ends_with("only.\nmax-pods=110\n")))
        );
    }
}
