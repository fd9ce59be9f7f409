//! Client of the bystander pods.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{anyhow, ensure};

/// Fetches from the bystanders without a pause; every failure is kept.
pub(crate) struct Customer {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    failures: Arc<Mutex<Vec<String>>>,
    thread: std::thread::JoinHandle<()>,
}

impl Customer {
    pub(crate) fn start(addresses: Vec<SocketAddr>) -> Self {
        let (stop, served, failures) = (
            Arc::<AtomicBool>::default(),
            Arc::<AtomicUsize>::default(),
            Arc::<Mutex<Vec<String>>>::default(),
        );
        let (own_stop, own_served, own_failures) = (Arc::clone(&stop), Arc::clone(&served), Arc::clone(&failures));
        let thread = std::thread::spawn(move || {
            while !own_stop.load(Ordering::Relaxed) {
                for address in &addresses {
                    match fetch(*address) {
                        Ok(()) => drop(own_served.fetch_add(1, Ordering::Relaxed)),
                        Err(error) => own_failures.lock().unwrap().push(format!("{address}: {error:#}")),
                    }
                }
                std::thread::park_timeout(Duration::from_millis(20));
            }
        });
        Self {
            stop,
            served,
            failures,
            thread,
        }
    }

    pub(crate) fn finish(self) -> anyhow::Result<usize> {
        self.stop.store(true, Ordering::Relaxed);
        let joined = self.thread.join();
        joined.map_err(|_panic| anyhow!("the customer panicked"))?;
        let failures = self.failures.lock().unwrap();
        ensure!(failures.is_empty(), "bystanders did not serve: {failures:?}");
        Ok(self.served.load(Ordering::Relaxed))
    }
}

pub(crate) fn fetch(address: SocketAddr) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(30))?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    Ok(())
}
