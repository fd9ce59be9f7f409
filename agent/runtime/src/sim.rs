//! Simulation of a machine in memory and virtual time.

mod calls;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::broadcast;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::{Container, ContainerSpec, Error, Event, ExecResult, Exit, Refusal, Sandbox, State};

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// Simulated behavior of containers of one image, or of one name, in a [`Sim`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Behaviour {
    /// Duration of a creation.
    pub create_takes: Duration,
    /// Error of a creation, if it fails.
    pub create_fails: Option<String>,
    /// Error of a start, if it fails.
    pub start_fails: Option<String>,
    /// Time after the start at which it exits by itself; `None` runs until it is signaled.
    pub runs_for: Option<Duration>,
    /// Exit code when it exits by itself.
    pub exit_code: i32,
    /// Time after SIGTERM at which it exits (with 143); `None` ignores the signal.
    pub stops_within: Option<Duration>,
    /// Result of every exec.
    pub exec: ExecResult,
}

impl Default for Behaviour {
    /// Starts at once, runs forever, stops at once on SIGTERM; exec succeeds without output.
    fn default() -> Self {
        Self {
            create_takes: Duration::ZERO,
            create_fails: None,
            start_fails: None,
            runs_for: None,
            exit_code: 0,
            stops_within: Some(Duration::ZERO),
            exec: ExecResult {
                exit_code: 0,
                output: Vec::new(),
                truncated: false,
                timed_out: false,
            },
        }
    }
}

struct World {
    origin: Instant,
    sandboxes: BTreeMap<String, Sandbox>,
    behaviours: BTreeMap<String, Behaviour>,
    /// Timers of future exits; dropped with the simulation.
    timers: JoinSet<()>,
}

/// Simulated runtime. Clones share one machine, so that an agent can be dropped and another one
/// adopt its containers.
#[derive(Clone)]
pub struct Sim {
    world: Arc<Mutex<World>>,
    events: broadcast::Sender<Event>,
}

impl Default for Sim {
    fn default() -> Self {
        Self::new()
    }
}

impl Sim {
    /// Creates an empty machine. Must be called inside a tokio runtime, whose time it uses, counted
    /// from 2030-01-01.
    pub fn new() -> Self {
        let world = World {
            origin: Instant::now(),
            sandboxes: BTreeMap::new(),
            behaviours: BTreeMap::new(),
            timers: JoinSet::new(),
        };
        Self {
            world: Arc::new(Mutex::new(world)),
            events: broadcast::channel(1024).0,
        }
    }

    /// Sets the behavior of containers with this name, or of this image reference.
    pub fn behave(&self, image_or_name: &str, behaviour: Behaviour) {
        self.world().behaviours.insert(image_or_name.to_owned(), behaviour);
    }

    /// Kills a container from outside, as `kill -9` on the machine would. Returns false if it does
    /// not run.
    pub fn kill(&self, sandbox: &str, container: &str) -> bool {
        self.end(sandbox, container, 128 + SIGKILL, Some(SIGKILL), false)
    }

    /// Simulates the death of a sandbox's supervisor.
    pub fn lose(&self, sandbox: &str) {
        if let Some(found) = self.world().sandboxes.get_mut(sandbox) {
            found.lost = true;
        }
        self.tell(Event::SandboxLost {
            sandbox_id: sandbox.to_owned(),
        });
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, event: Event) {
        // It fails without receivers, which is harmless.
        drop(self.events.send(event));
    }

    fn end(&self, sandbox: &str, container: &str, code: i32, signal: Option<i32>, oom_killed: bool) -> bool {
        let exit = {
            let mut world = self.world();
            let finished_at = world.now();
            let Ok(found) = world.container(sandbox, container) else {
                return false;
            };
            let started_at = match found.state {
                State::Running { started_at, .. } => Some(started_at),
                State::Created => None,
                State::Exited { .. } => return false,
            };
            let exit = Exit {
                code,
                signal,
                oom_killed,
                finished_at,
            };
            found.state = State::Exited {
                exit: exit.clone(),
                started_at,
            };
            exit
        };
        let (sandbox_id, container_id) = (sandbox.to_owned(), container.to_owned());
        self.tell(Event::ContainerExited {
            sandbox_id,
            container_id,
            exit,
        });
        true
    }

    /// Lets the container exit after a while, unless it exited or was removed before.
    fn end_later(&self, after: Duration, sandbox: &str, container: &str, code: i32, signal: Option<i32>) {
        if after.is_zero() {
            self.end(sandbox, container, code, signal, false);
            return;
        }
        let (world, events) = (Arc::downgrade(&self.world), self.events.clone());
        let (sandbox, container) = (sandbox.to_owned(), container.to_owned());
        self.world().timers.spawn(async move {
            tokio::time::sleep(after).await;
            if let Some(world) = world.upgrade() {
                Sim { world, events }.end(&sandbox, &container, code, signal, false);
            }
        });
    }
}

impl World {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_hours(525_960) + self.origin.elapsed()
    }

    fn behaviour(&self, name: &str, image: &str) -> Behaviour {
        self.behaviours
            .get(name)
            .or_else(|| self.behaviours.get(image))
            .cloned()
            .unwrap_or_default()
    }

    fn sandbox(&mut self, id: &str) -> Result<&mut Sandbox, Error> {
        let found = self
            .sandboxes
            .get_mut(id)
            .ok_or_else(|| Error::SandboxNotFound(id.to_owned()))?;
        if found.lost {
            Err(Error::SandboxLost(id.to_owned()))
        } else {
            Ok(found)
        }
    }

    fn container(&mut self, sandbox: &str, id: &str) -> Result<&mut Container, Error> {
        let found = self
            .sandbox(sandbox)?
            .containers
            .iter_mut()
            .find(|container| container.id == id);
        found.ok_or_else(|| Refusal::ContainerNotFound(id.to_owned()).into())
    }

    /// Returns the behavior of a running container; fails in other states.
    fn running(&mut self, sandbox: &str, container: &str) -> Result<Behaviour, Error> {
        let found = self.container(sandbox, container)?;
        if !matches!(found.state, State::Running { .. }) {
            return Err(Refusal::wrong_state(found).into());
        }
        let (name, image) = (found.name.clone(), found.image.clone());
        Ok(self.behaviour(&name, &image))
    }

    fn create(&mut self, sandbox: &str, spec: ContainerSpec) -> Result<Container, Error> {
        let created_at = self.now();
        let found = self.sandbox(sandbox)?;
        if found.containers.iter().any(|container| container.id == spec.id) {
            return Err(Refusal::ContainerExists(spec.id).into());
        }
        if spec.user.must_not_be_root && matches!(spec.user.user.as_str(), "" | "0" | "root") {
            return Err(Error::RunsAsRoot);
        }
        let container = Container {
            id: spec.id,
            name: spec.name,
            attempt: spec.attempt,
            image: spec.image,
            image_id: spec.image_id,
            log_path: spec.log_path,
            annotations: spec.annotations,
            created_at,
            state: State::Created,
        };
        found.containers.push(container.clone());
        Ok(container)
    }
}

fn failed(doing: &str, cause: String) -> Error {
    Refusal::Failed {
        doing: doing.to_owned(),
        cause,
    }
    .into()
}
