//! Dispatch of requests to their handlers, with authentication, authorization and audit.

mod other;
mod token_usage;
mod turn;

use std::sync::Arc;

use api::kind::{Scope, Subresource, Verbs};
use api::kinds::node::REVERSE_CONNECTION;
use api::managed::Conversions;
use axum::body::Body;
use bytes::Bytes;
use http::header::ACCEPT;
use http::request::Parts;
use http::{HeaderValue, Method, Request, StatusCode};
use http_body::Body as _;
use tokio::time::Instant;

use crate::authn::identity::{ANONYMOUS, Fence, User};
use crate::authn::tokens::Used;
use crate::authn::{self, Caller};
use crate::authz::{self, Attributes, Decision};
use crate::extensions::aggregation;
use crate::extensions::definitions::Table;
use crate::node::connect::{Wanted, connect};
use crate::ops::audit::Layer;
use crate::ops::audit::recording::{self, AUDIT_ID, Outcome, Recording};
use crate::ops::metrics::Manner;
use crate::ops::ui;
use crate::request::context::{Context, Gathered, Notes, Wire, refresh};
use crate::request::failure::Failure;
use crate::request::info::RequestInfo;
use crate::request::path;
use crate::request::query::Query;
use crate::request::subresource;
use crate::server::blocking;
use crate::server::limits::Pass;
use crate::server::shared::Shared;
use crate::transport::negotiation::{Encoding, for_people};
use crate::transport::respond::{self, Response};
use crate::transport::tunnel;
use crate::{node, read, write};
use other::other;
use turn::Turn;

/// Number of definitions of its kind by which a write is tried, one after the other.
const DEFINITIONS: u32 = 8;

/// Handles any request and records it.
pub(crate) async fn handle(shared: Arc<Shared>, request: Request<Body>) -> Response {
    let received = (shared.options.clock)();
    let began = Instant::now();
    let (mut parts, body) = request.into_parts();
    let manner = Manner::of(&parts);
    let accept = parts.headers.get(ACCEPT).cloned();
    let query = parts.uri.query().filter(|query| query.contains("pretty"));
    let query = Query::parse(query).unwrap_or_default();
    let json = for_people(Encoding::Json, &parts.headers, &query);
    let caller = authn::caller(&shared, &mut parts).await;
    let authenticated = began.elapsed();
    let name = caller.as_ref().ok().map(|caller| caller.user.name.as_str());
    let confines = ui::is_to_confine(&parts, name == Some(ANONYMOUS));
    shared.metrics.access.authenticated(name);
    let writer = name.filter(|_| parts.method != Method::GET).map(str::to_owned);
    let used = parts.extensions.remove::<Used>();
    let mut recording = Recording::begin(&shared, &parts, caller.as_ref().ok(), received);
    recording.outcome.latencies.push((Layer::Authentication, authenticated));
    if let Some(used) = used {
        token_usage::note(&shared, &used, &mut recording.outcome).await;
    }
    let answer = match caller {
        Ok(caller) => Box::pin(route(&shared, parts, caller, body, &mut recording.outcome)).await,
        Err(failure) => Err(failure),
    };
    let (mut response, failure) = match answer {
        Ok(response) => (response, None),
        Err(failure) => {
            if let Failure::Internal { message } = &failure {
                tracing::error!(message, "request failed");
            }
            (respond::failure(&failure, accept.as_ref(), json), Some(failure))
        }
    };
    respond::add_warnings(&mut response, &recording.outcome.warnings);
    if confines {
        ui::confine(&mut response);
    }
    if let Some(flow) = recording.outcome.flow.take() {
        flow.note(response.headers_mut());
    }
    let info = &recording.outcome.info;
    let row = shared
        .definitions
        .current()
        .kinds
        .find(&info.group, &info.version, &info.resource);
    let row = row.as_deref();
    let took = (!info.lasts()).then(|| began.elapsed());
    let asked = (info, row, manner);
    let bytes = response.body().size_hint().exact();
    shared.metrics.count(asked, response.status().as_u16(), took, bytes);
    if matches!(failure, Some(Failure::Overloaded { .. })) {
        shared.metrics.terminated(asked, response.status().as_u16());
    }
    if info.lasts() && failure.is_none() {
        response = recording::until_end(response, shared.metrics.lasting(asked));
    }
    // One time for the page and the audit log.
    let answered = (shared.options.clock)();
    if let Some(writer) = writer.filter(|_| response.status().is_success()) {
        let notes = &recording.outcome.notes;
        let objects = (notes.sent.name.as_str(), notes.response.as_ref());
        shared.writes.note(info, objects, &writer, (received, answered));
    }
    recording.end(response, failure, answered).await
}

async fn route(
    shared: &Arc<Shared>,
    mut parts: Parts,
    caller: Caller,
    body: Body,
    outcome: &mut Outcome,
) -> Result<Response, Failure> {
    let mut segments = path::segments(parts.uri.path())?;
    if ui::is_own(&segments) {
        return ui::answer(shared, parts, &caller.user, body, (&segments, outcome)).await;
    }
    let facts = ui::Facts::take(&mut segments);
    let query = Query::parse(parts.uri.query())?;
    let info = RequestInfo::new(&parts.method, &segments, &query)?;
    outcome.info = info.clone();
    let turn = Turn::new(&parts, &info, &query)?;
    let asked = (&info, segments.as_slice());
    let impersonated = authn::impersonated(shared, &caller.user, asked, &mut parts.headers)?;
    outcome.impersonated.clone_from(&impersonated);
    let user = impersonated.map_or(caller.user, |impersonated| impersonated.user);
    turn.sort(shared, &user, parts.uri.path(), outcome);
    authorize(shared, &user, &info, &segments, outcome)?;
    if let Some(facts) = facts {
        let _seat = turn.seat(shared, outcome).await?;
        return facts.answer(shared, &user, &info).await;
    }
    if let Some(remote) = shared.aggregation.of(&segments) {
        return elsewhere(shared, &remote, (parts, body), &user, (turn, outcome)).await;
    }
    if !info.is_resource {
        let _seat = turn.seat(shared, outcome).await?;
        if parts.method == Method::GET && parts.uri.path() == REVERSE_CONNECTION {
            return node::reverse::answer(&shared.network, &shared.options.reverse, &user, &mut parts).await;
        }
        return other(shared, &parts, &segments, &query).await;
    }
    Box::pin(resource(shared, (parts, body), (user, info, query), turn, outcome)).await
}

/// Answers what is about a resource of this server.
async fn resource(
    shared: &Arc<Shared>,
    (mut parts, body): (Parts, Body),
    (user, info, query): (User, RequestInfo, Query),
    turn: Turn,
    outcome: &mut Outcome,
) -> Result<Response, Failure> {
    let passes = turn.outside && turn.lasts;
    let pass = passes.then(|| shared.limits.enter(&user.name)).transpose()?;
    let (lasting, bytes, room) = if turn.lasts {
        (Some(body), Bytes::new(), None)
    } else {
        let (bytes, room) = turn.body(shared, &user, body).await?;
        (None, bytes, room)
    };
    let _seat = turn.seat(shared, outcome).await?;
    refresh(shared, &info, &query).await?;
    let table = shared.definitions.current();
    let registration = registration(&table, &info, &parts.method)?;
    let mut context = Context {
        server: Arc::clone(shared),
        user,
        info,
        query,
        wire: Wire::of(&mut parts),
        headers: parts.headers,
        table,
        registration,
        fence: parts.extensions.remove::<Fence>().map(Fence::into_guard),
        warnings: Gathered::default(),
        annotations: Gathered::default(),
        notes: Notes::default(),
        latencies: Gathered::default(),
        conversions: Conversions::default(),
        as_of: None,
        deadline: turn.deadline(),
    };
    let answer = match lasting {
        // Nothing of it is read here.
        Some(body) => serve(&mut context, body).await,
        None => serve_whole(&mut context, bytes).await,
    };
    drop(room);
    outcome.warnings.extend(context.warnings.into_vec());
    outcome.annotations.extend(context.annotations.into_vec());
    outcome.latencies.extend(context.latencies.into_vec());
    outcome.notes = context.notes;
    if let Some(used) = outcome.notes.used.take() {
        token_usage::note(shared, &used, outcome).await;
    }
    hold(shared, pass, answer)
}

/// Serves a request whose body has arrived. Begins anew if the definition of its kind has changed
/// before the commit: the object is then validated by the new schema, or its kind is gone.
async fn serve_whole(context: &mut Context, bytes: Bytes) -> Result<Response, Failure> {
    let mut attempts = DEFINITIONS;
    loop {
        let weight = bytes.len().max(changed(context));
        let answer = blocking::apart(weight, serve(context, Body::from(bytes.clone()))).await;
        attempts -= 1;
        if attempts == 0 || !matches!(answer, Err(Failure::Conflict { .. })) || !context.is_overtaken() {
            return answer;
        }
        let table = context.server.definitions.current();
        let row = registration(&table, &context.info, &context.wire.method)?;
        context.begin_anew(table, row);
    }
}

/// Keeps the pass of a long-running request until its answer ends.
fn hold(shared: &Shared, pass: Option<Pass>, mut answer: Result<Response, Failure>) -> Result<Response, Failure> {
    let Some(pass) = pass else { return answer };
    let ending = shared.limits.ending();
    if let Ok(response) = &mut answer
        && response.status() == StatusCode::SWITCHING_PROTOCOLS
    {
        tunnel::keep(response, pass);
        return answer;
    }
    answer.map(|response| response.map(|body| Body::new(pass.hold(body, ending))))
}

/// The kind at a path.
fn registration(table: &Table, info: &RequestInfo, method: &Method) -> Result<api::Row, Failure> {
    let found = table.kinds.find(&info.group, &info.version, &info.resource);
    // Of groups that only definitions make, upstream's routes know nothing.
    let is_known = |row: &api::Registration| row.group == info.group && row.version == info.version;
    let found = found.ok_or_else(|| {
        let scope = table.unresolved(&info.group, &info.version, &info.resource);
        if scope.is_some_and(|scope| has_defined(scope, info)) {
            Failure::internal("error resolving resource")
        } else if api::KINDS.iter().any(is_known) {
            Failure::NoSuchResource
        } else {
            Failure::NoSuchPath
        }
    })?;
    // The deprecated watch paths serve watches only.
    if info.verb == "watch" && !matches!(method.as_str(), "GET" | "HEAD") {
        return Err(Failure::MethodNotAllowed);
    }
    Ok(found)
}

/// Proxies a request for an aggregated group version.
async fn elsewhere(
    shared: &Arc<Shared>,
    remote: &aggregation::Remote,
    (mut parts, body): (Parts, Body),
    user: &User,
    (turn, outcome): (Turn, &mut Outcome),
) -> Result<Response, Failure> {
    let lasting = turn.lasts || tunnel::is_wanted(&parts.headers);
    let (body, is_whole, _room) = if lasting || !turn.outside {
        (body, true, None)
    } else {
        let (begun, room) = turn.beginning(shared, user, body).await?;
        (begun.body, begun.is_whole, room)
    };
    let passes = turn.outside && (lasting || !is_whole);
    let pass = passes.then(|| shared.limits.enter(&user.name)).transpose()?;
    // A body that is still to come takes none: its client may send it slowly.
    let _seat = if is_whole && (turn.lasts || !lasting) {
        turn.seat(shared, outcome).await?
    } else {
        None
    };
    // `NewRequestForProxy` of `staging/src/k8s.io/apiserver/pkg/util/proxy/proxy.go`.
    if let Ok(id) = HeaderValue::from_str(&outcome.id) {
        parts.headers.insert(AUDIT_ID, id);
    }
    let wire = Wire::of(&mut parts);
    let answer = aggregation::proxy::answer(shared, remote, (wire, parts.headers, body), user);
    let answer = if lasting {
        answer.await
    } else {
        let answer = tokio::time::timeout(turn::LONGEST, answer).await;
        answer.unwrap_or_else(|_elapsed| {
            let message = "Timeout: request did not complete within the allotted timeout\n";
            Ok(respond::text(StatusCode::GATEWAY_TIMEOUT, message))
        })
    };
    hold(shared, pass, answer)
}

/// Bytes of the object that a request changes.
fn changed(context: &Context) -> usize {
    let info = &context.info;
    if !matches!(info.verb, "update" | "patch" | "delete") {
        return 0;
    }
    let entry = context.key(&info.name).ok().and_then(|key| context.store().get(&key));
    entry.map_or(0, |entry| entry.bytes.len())
}

/// Authorizes the request and records the decision for the audit log.
fn authorize(
    shared: &Shared,
    user: &User,
    info: &RequestInfo,
    segments: &[String],
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    let path = (!info.is_resource).then(|| format!("/{}", segments.join("/")));
    let path = path.unwrap_or_default();
    let attributes = Attributes::of(info, &path);
    let began = Instant::now();
    let decision = shared.authorizer.decide(user, &attributes);
    outcome.latencies.push((Layer::Authorization, began.elapsed()));
    shared.metrics.access.authorized(decision.is_allowed());
    let answer = match &decision {
        Decision::Allowed(_) => Ok(()),
        Decision::Denied(reason) => Err(authz::denied(user, &attributes, reason)),
    };
    outcome.decision = Some(decision);
    answer
}

async fn serve(context: &mut Context, body: Body) -> Result<Response, Failure> {
    check_scope(context)?;
    if let Some(warning) = context.registration.deprecated {
        context.warnings.extend([warning.to_owned()]);
        context
            .annotations
            .extend([("k8s.io/deprecated".into(), "true".to_owned())]);
        context.server.metrics.uses.deprecated(&context.registration);
    }
    if !context.info.subresource.is_empty() {
        return serve_subresource(context, body).await;
    }
    match context.registration.verbs {
        Verbs::OneByOne if context.info.verb == "deletecollection" => return Err(Failure::MethodNotAllowed),
        Verbs::All | Verbs::OneByOne => {}
        Verbs::CreateOnly => {
            return match context.info.verb {
                "create" if !context.info.named => authn::review::create(context, body).await,
                _ => Err(Failure::MethodNotAllowed),
            };
        }
        Verbs::ReadOnly => {
            return match (context.info.verb, context.info.named) {
                ("get", true) => read::component_status::get(context).await,
                ("list", false) => read::component_status::list(context).await,
                _ => Err(Failure::MethodNotAllowed),
            };
        }
        Verbs::Measured => {
            return match (context.info.verb, context.info.named) {
                ("get", true) => read::usage::get(context).await,
                ("list", false) => read::usage::list(context).await,
                _ => Err(Failure::MethodNotAllowed),
            };
        }
    }
    if let Some(answer) = read::history::answer(context).await? {
        return Ok(answer);
    }
    match (context.info.verb, context.info.named) {
        ("get", true) => read::get::get(context).await,
        ("list", false) => read::list::list(context).await,
        ("watch", _) => read::watch::watch(context).await,
        ("create", false) => write::create::create(context, body).await,
        ("update", true) => write::update::update(context, body).await,
        ("patch", true) => write::patch::patch(context, body).await,
        ("delete", true) => write::delete::delete(context, body).await,
        ("deletecollection", false) => write::delete::collection::delete_collection(context, body).await,
        _ => Err(Failure::MethodNotAllowed),
    }
}

async fn serve_subresource(context: &mut Context, body: Body) -> Result<Response, Failure> {
    let Some(own) = subresource::find(&context.registration, &context.info.subresource) else {
        if context.registration.is_defined() {
            let target = context.own_target();
            return Err(Failure::NotFound { target });
        }
        return Err(Failure::NoSuchResource);
    };
    // The deprecated watch paths serve objects only: the right to watch must not open a proxy.
    if context.info.verb == "watch" {
        return Err(Failure::NoSuchResource);
    }
    match (own, context.info.verb) {
        (
            Subresource::Status | Subresource::EphemeralContainers | Subresource::Resize | Subresource::Approval,
            "get",
        ) => read::get::get(context).await,
        (
            Subresource::Status
            | Subresource::EphemeralContainers
            | Subresource::Resize
            | Subresource::Approval
            | Subresource::Finalize,
            "update",
        ) => write::update::update(context, body).await,
        (
            Subresource::Status | Subresource::EphemeralContainers | Subresource::Resize | Subresource::Approval,
            "patch",
        ) => write::patch::patch(context, body).await,
        (Subresource::Scale, "get") => write::scale::get(context).await,
        (Subresource::Scale, "update") => write::scale::update(context, body).await,
        (Subresource::Scale, "patch") => write::scale::patch(context, body).await,
        (Subresource::Binding, "create") => write::binding::create(context, body).await,
        (Subresource::Eviction, "create") => write::eviction::create(context, body).await,
        (Subresource::Log, "get") => node::log::get(context).await,
        (Subresource::Token, "create") => authn::token_request::create(context, body).await,
        (Subresource::Exec, "get" | "create") => connect(context, Wanted::Exec).await,
        (Subresource::Attach, "get" | "create") => connect(context, Wanted::Attach).await,
        (Subresource::PortForward, "get" | "create") => connect(context, Wanted::PortForward).await,
        (Subresource::Proxy, _) => node::proxy::proxy(context, body).await,
        (
            Subresource::Status
            | Subresource::Scale
            | Subresource::Binding
            | Subresource::EphemeralContainers
            | Subresource::Resize
            | Subresource::Eviction
            | Subresource::Log
            | Subresource::Finalize
            | Subresource::Token
            | Subresource::Approval
            | Subresource::Exec
            | Subresource::Attach
            | Subresource::PortForward,
            _,
        ) => Err(Failure::MethodNotAllowed),
    }
}

/// True if a definition of this scope answers for the path (`ServeHTTP` of
/// `pkg/apiserver/customresource_handler.go`).
fn has_defined(scope: Scope, info: &RequestInfo) -> bool {
    match scope {
        Scope::Namespaced => !info.namespace.is_empty() || matches!(info.verb, "list" | "watch"),
        Scope::Cluster => info.namespace.is_empty(),
    }
}

/// Refuses paths that do not fit the kind's scope, as upstream's routes do.
fn check_scope(context: &Context) -> Result<(), Failure> {
    let info = &context.info;
    if !info.rest.is_empty() && info.subresource != Subresource::Proxy.name() {
        return Err(Failure::NoSuchResource);
    }
    let namespaced = !info.namespace.is_empty();
    let is_list = matches!(info.verb, "list" | "watch");
    if context.registration.is_defined() && !has_defined(context.registration.scope, info) {
        return Err(Failure::NoSuchPath);
    }
    match context.registration.scope {
        Scope::Namespaced if namespaced => Ok(()),
        // Across namespaces there are only list and watch.
        Scope::Namespaced if info.named => Err(Failure::NoSuchResource),
        Scope::Namespaced if is_list => Ok(()),
        Scope::Namespaced => Err(Failure::MethodNotAllowed),
        Scope::Cluster if !namespaced => Ok(()),
        Scope::Cluster if info.resource == "namespaces" && info.namespace == info.name => Ok(()),
        Scope::Cluster => Err(Failure::NoSuchResource),
    }
}
