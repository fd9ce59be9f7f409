//! Compares every kind of store with the simplest correct one: a map and a list of all states.
#![allow(missing_docs, reason = "tests")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

mod common;

use std::collections::BTreeMap;

use common::{create, data, delete, options, pod, pods, stores, update};
use controlplane_store::{CommitError, ListAt, Options, Store};
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    Create(u8, u8),
    /// Update with the right revision, or with one that is off by this much.
    Update(u8, u8, u64),
    Delete(u8, Option<u64>),
    List(u64, usize),
    Watch(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..5_u8;
    prop_oneof![
        3 => (key.clone(), any::<u8>()).prop_map(|(key, data)| Step::Create(key, data)),
        4 => (key.clone(), 0..3_u8, 0..2_u64).prop_map(|(key, data, off)| Step::Update(key, data, off)),
        2 => (key, proptest::option::of(0..2_u64)).prop_map(|(key, off)| Step::Delete(key, off)),
        1 => (0..40_u64, 1..4_usize).prop_map(|(back, limit)| Step::List(back, limit)),
        1 => (0..40_u64).prop_map(Step::Watch),
    ]
}

/// State by name: revision and data.
type State = BTreeMap<String, (u64, String)>;

#[derive(Debug, Default)]
struct Model {
    /// The state at every revision; the first is the empty one.
    history: Vec<State>,
}

impl Model {
    fn revision(&self) -> u64 {
        self.history.len() as u64 - 1
    }

    fn now(&self) -> &State {
        self.history.last().unwrap()
    }

    fn change(&mut self, name: &str, data: Option<&str>) {
        let mut state = self.now().clone();
        match data {
            Some(data) => state.insert(name.to_owned(), (self.revision() + 1, data.to_owned())),
            None => state.remove(name),
        };
        self.history.push(state);
    }
}

async fn apply(store: &Store, model: &mut Model, step: Step) {
    match step {
        Step::Create(key, text) => {
            let (name, text) = (format!("p{key}"), text.to_string());
            let outcome = store.commit(create(&pod(&name), &text)).await;
            if model.now().contains_key(&name) {
                assert!(matches!(outcome, Err(CommitError::Exists)));
            } else {
                model.change(&name, Some(&text));
                assert_eq!(outcome.unwrap().revision, model.revision());
            }
        }
        Step::Update(key, text, off) => {
            let (name, text) = (format!("p{key}"), text.to_string());
            let current = model.now().get(&name).cloned();
            let expected = current.as_ref().map_or(0, |(revision, _)| *revision) + off;
            let outcome = store.commit(update(&pod(&name), &text, expected)).await;
            match current {
                None => assert!(matches!(outcome, Err(CommitError::NotFound))),
                Some((actual, _)) if off > 0 => {
                    assert!(matches!(outcome, Err(CommitError::Conflict { actual: found }) if found == actual));
                }
                Some((actual, same)) if same == text => assert_eq!(outcome.unwrap().revision, actual),
                Some(_) => {
                    model.change(&name, Some(&text));
                    assert_eq!(outcome.unwrap().revision, model.revision());
                }
            }
        }
        Step::Delete(key, off) => {
            let name = format!("p{key}");
            let current = model.now().get(&name).map(|(revision, _)| *revision);
            let expected = off.map(|off| current.unwrap_or_default() + off);
            let outcome = store.commit(delete(&pod(&name), expected)).await;
            match (current, off) {
                (None, _) => assert!(matches!(outcome, Err(CommitError::NotFound))),
                (Some(actual), Some(1)) => {
                    assert!(matches!(outcome, Err(CommitError::Conflict { actual: found }) if found == actual));
                }
                (Some(_), _) => {
                    model.change(&name, None);
                    assert_eq!(outcome.unwrap().revision, model.revision());
                }
            }
        }
        Step::List(back, limit) => list(store, model, model.revision().saturating_sub(back), limit).await,
        Step::Watch(back) => watch(store, model, model.revision().saturating_sub(back)).await,
    }
}

/// All pages of a list at a revision.
async fn list(store: &Store, model: &Model, at: u64, limit: usize) {
    let mut found = State::new();
    let mut after = None;
    loop {
        let page = store
            .list(&pods(), ListAt::Exactly(at), after.as_ref(), Some(limit))
            .await
            .unwrap();
        for entry in &page.entries {
            found.insert(entry.key.name().to_owned(), (entry.revision, data(entry)));
        }
        after = page.entries.last().map(|entry| entry.key.clone());
        if page.remaining == 0 {
            break;
        }
    }
    assert_eq!(&found, &model.history[usize::try_from(at).unwrap()], "at {at}");
}

/// Applied to the state at a revision, the events lead to the current state.
async fn watch(store: &Store, model: &Model, from: u64) {
    let mut watch = store.watch(&pods(), from).unwrap();
    let mut state = model.history[usize::try_from(from).unwrap()].clone();
    for revision in from + 1..=model.revision() {
        let event = watch.next().await.unwrap();
        assert_eq!(event.revision, revision);
        let name = event.entry.key.name().to_owned();
        let before = event.prev().map(|prev| (prev.revision, data(prev)));
        assert_eq!(before.as_ref(), state.get(&name));
        match event.kind {
            controlplane_store::EventKind::Put { .. } => state.insert(name, (revision, data(&event.entry))),
            controlplane_store::EventKind::Delete { .. } => state.remove(&name),
        };
    }
    assert_eq!(&state, model.now());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn behaves_like_the_model(steps in proptest::collection::vec(step(), 1..60), ring in 1..12_usize) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let options = Options { ring_events: ring, ..options() };
            for (_, store, directory) in stores(&options) {
                let mut model = Model { history: vec![State::new()] };
                for step in &steps {
                    apply(&store, &mut model, step.clone()).await;
                }
                store.close().await.unwrap();
                // The disk has the same content as memory.
                if let Some(directory) = directory {
                    let store = Store::open(&directory.path().join("test.db"), options.clone()).unwrap();
                    assert_eq!(store.revision(), model.revision());
                    list(&store, &model, model.revision(), 2).await;
                    list(&store, &model, model.revision() / 2, 2).await;
                    watch(&store, &model, 0).await;
                    store.close().await.unwrap();
                }
            }
        });
    }
}
