//! Settings of a cluster that are chosen at its first start, so that several can run side by side.

pub(super) mod addresses;

use std::fs::{self, File};
use std::hash::{Hash as _, Hasher as _};
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::Path;

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};

use crate::arguments::{Backends, DEFAULT_STATE, History, UpOptions};

/// Settings in `DIR/cluster.json`. Those of this machine are absent in a cluster that was restored
/// elsewhere: the original may still run.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub(super) struct Settings {
    #[serde(default)]
    pub(super) listen_port: u16,
    #[serde(default)]
    pub(super) agent_port: u16,
    #[serde(default)]
    pub(super) pod_cidr: String,
    pub(super) node_name: String,
    #[serde(default)]
    pub(super) bridge: String,
    #[serde(default)]
    pub(super) cgroup_root: String,
    pub(super) node_addresses: Vec<IpAddr>,
    /// True if these were given, so that they are not chosen anew at each start.
    #[serde(default)]
    pub(super) fixed_addresses: bool,
    /// Names and addresses of the API server for other machines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) advertise: Vec<String>,
    /// Flag of the control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) load_balancer_addresses: Option<String>,
    #[serde(default)]
    pub(super) history: History,
    /// URL of the API server that a node has joined; that of a node of `skiff up` is on this
    /// machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) joined: Option<String>,
    #[serde(default)]
    pub(super) backends: Backends,
    /// Settings to go back to, until the cluster has been up with these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) before: Option<Box<Self>>,
}

const FILE: &str = "cluster.json";

impl Settings {
    pub(super) fn read(state_dir: &Path) -> anyhow::Result<Option<Self>> {
        match fs::read(state_dir.join(FILE)) {
            // The machine stopped before the file was written: settings are chosen again.
            Ok(text) if text.is_empty() => Ok(None),
            Ok(text) => Ok(Some(
                serde_json::from_slice(&text).with_context(|| format!("read {FILE}"))?,
            )),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("read {FILE}")),
        }
    }

    /// Returns settings without any choice.
    pub(super) fn nothing() -> Self {
        Self {
            listen_port: 0,
            agent_port: 0,
            pod_cidr: String::new(),
            node_name: String::new(),
            bridge: String::new(),
            cgroup_root: String::new(),
            node_addresses: Vec::new(),
            fixed_addresses: false,
            advertise: Vec::new(),
            load_balancer_addresses: None,
            history: History::default(),
            joined: None,
            backends: Backends::default(),
            before: None,
        }
    }

    /// Returns settings without those of a cluster: they are chosen at its next start.
    pub(super) fn blank(&self) -> Self {
        Self {
            node_name: self.node_name.clone(),
            node_addresses: self.node_addresses.clone(),
            advertise: self.advertise.clone(),
            joined: self.joined.clone(),
            ..Self::nothing()
        }
    }

    /// True if the settings are equal except for the machine's addresses.
    pub(super) fn is_as(&self, other: &Self) -> bool {
        let node_addresses = self.node_addresses.clone();
        let other = Self {
            node_addresses,
            fixed_addresses: self.fixed_addresses,
            ..other.clone()
        };
        *self == other
    }

    pub(super) fn write(&self, state_dir: &Path) -> anyhow::Result<()> {
        let temporary = state_dir.join(format!("{FILE}.new"));
        let text = serde_json::to_vec_pretty(self)?;
        let written = File::create(&temporary).and_then(|mut file| {
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&temporary, state_dir.join(FILE))?;
            File::open(state_dir)?.sync_all()
        });
        written.with_context(|| format!("write {FILE}"))
    }

    /// Chooses settings: flags first, then known ones, then free ones.
    pub(super) fn choose(state_dir: &Path, options: &UpOptions, known: Option<&Self>) -> anyhow::Result<Self> {
        let tail = own_name(state_dir);
        let named = |first: &str, separator: &str| match &tail {
            None => first.to_owned(),
            Some(tail) => format!("{first}{separator}{tail}"),
        };
        let port = |of: fn(&Self) -> u16| known.map(of).filter(|port| *port != 0);
        let text = |of: fn(&Self) -> &String| known.map(of).filter(|text| !text.is_empty()).cloned();
        let nothing = Self::nothing();
        let earlier = known.unwrap_or(&nothing);
        let balancers = options.load_balancer_addresses.as_ref();
        // Only a machine with a control plane of its own has these.
        let is_own = earlier.joined.is_none();
        // A backup is restored on another machine, too.
        let is_here = |known: &&Self| known.node_addresses.iter().all(|own| addresses::is_here(*own));
        let fixed = known.filter(|known| known.fixed_addresses).filter(is_here);
        let settings = Self {
            listen_port: pick(options.listen_port, port(|known| known.listen_port), || {
                if is_own {
                    free_port(Ipv4Addr::UNSPECIFIED, 6443)
                } else {
                    Ok(0)
                }
            })?,
            agent_port: pick(options.agent_port, port(|known| known.agent_port), || {
                free_port(Ipv4Addr::UNSPECIFIED, 10250)
            })?,
            pod_cidr: pick(options.pod_cidr.clone(), text(|known| &known.pod_cidr), || {
                if is_own {
                    free_range(options.backends.network.as_deref() == Some("cni"))
                } else {
                    Ok(String::new())
                }
            })?,
            node_name: pick(options.node_name.clone(), text(|known| &known.node_name), || {
                super::daemons::unit::node_name(state_dir).map_or_else(|| host_name(is_own), Ok)
            })?,
            bridge: pick(options.bridge.clone(), text(|known| &known.bridge), || {
                let own = tail.as_ref().map(|tail| format!("skiff-{tail}"));
                Ok(own.unwrap_or_else(|| "skiff0".to_owned()))
            })?,
            cgroup_root: pick(options.cgroup_root.clone(), text(|known| &known.cgroup_root), || {
                Ok(named("skiff", "-"))
            })?,
            node_addresses: if !options.node_address.is_empty() {
                options.node_address.clone()
            } else if let Some(known) = fixed.or(known.filter(|_| !is_own)) {
                known.node_addresses.clone()
            } else {
                let known = known.map(|known| known.pod_cidr.as_str());
                addresses::choose(options.pod_cidr.as_deref().or(known))
            },
            fixed_addresses: fixed.is_some() || !options.node_address.is_empty(),
            advertise: match known {
                Some(known) if options.advertise.is_empty() => known.advertise.clone(),
                Some(_) | None => options.advertise.clone(),
            },
            load_balancer_addresses: balancers.or(earlier.load_balancer_addresses.as_ref()).cloned(),
            history: options.history.or(&earlier.history),
            joined: earlier.joined.clone(),
            backends: options.backends.or(&earlier.backends),
            before: None,
        };
        ensure!(
            settings.bridge.len() <= 15 && !settings.bridge.contains('/'),
            "a bridge's name has at most 15 characters and no slash"
        );
        ensure!(
            !settings.cgroup_root.split('/').any(|part| part == ".."),
            "a control group's path has no .."
        );
        Ok(settings)
    }
}

/// Service CIDRs if pods have IPv6 addresses: Services can then be of either family, or dual-stack.
const SERVICES: [&str; 2] = ["10.96.0.0/12", "fd00:10:96::/112"];

/// Returns the control plane's flags for the CIDRs of joining nodes: one of each family of the
/// first node's pods. For IPv4 it is the usual one, for IPv6 the network around the first node's.
pub(super) fn cluster_ranges(pod_cidr: &str) -> Vec<String> {
    let surrounding = |range: &str| {
        let (address, length) = range.trim().split_once('/')?;
        let (address, length) = (address.parse::<Ipv6Addr>().ok()?, length.parse::<u32>().ok()?);
        let around = length.checked_sub(8)?;
        let mask = u128::MAX.checked_shl(128_u32.checked_sub(around)?).unwrap_or_default();
        Some((
            format!("{}/{around}", Ipv6Addr::from_bits(address.to_bits() & mask)),
            length,
        ))
    };
    let each: Vec<_> = pod_cidr.split(',').map(surrounding).collect();
    let Some((_, length)) = each.iter().flatten().next() else {
        return Vec::new();
    };
    let ranges: Vec<&str> = each
        .iter()
        .map(|range| range.as_ref().map_or("10.244.0.0/16", |(range, _)| range))
        .collect();
    let mut services = SERVICES;
    if each.iter().all(Option::is_some) {
        // Pods without IPv4 reach no Service of it, so that IPv6 is the usual family.
        services.reverse();
    }
    vec![
        format!("--cluster-cidr={}", ranges.join(",")),
        format!("--node-cidr-mask-size-ipv6={length}"),
        format!("--service-cidr={}", services.join(",")),
    ]
}

fn pick<T>(given: Option<T>, known: Option<T>, choose: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    match given.or(known) {
        Some(value) => Ok(value),
        None => choose(),
    }
}

/// Six hexadecimal digits from the state directory's path; `None` for the default one.
fn own_name(state_dir: &Path) -> Option<String> {
    if state_dir == Path::new(DEFAULT_STATE) || super::daemons::unit::is_its(state_dir) {
        return None;
    }
    let mut hasher = std::hash::DefaultHasher::new();
    state_dir.hash(&mut hasher);
    Some(format!("{:06x}", hasher.finish() & 0x00ff_ffff))
}

/// Returns the first free port from `first` on.
fn free_port(address: Ipv4Addr, first: u16) -> anyhow::Result<u16> {
    (first..first.saturating_add(100))
        .find(|port| TcpListener::bind(SocketAddr::from((address, *port))).is_ok())
        .with_context(|| format!("no free port from {first} on"))
}

/// Returns the first /24 of 10.244.0.0/16 without a route; for CNI plugins, routes to an empty
/// bridge do not count.
fn free_range(plugins: bool) -> anyhow::Result<String> {
    let routes = fs::read_to_string("/proc/net/route").context("read the routes")?;
    first_free_range(&routes, |interface| plugins && is_empty_bridge(interface))
        .context("every range of 10.244.0.0/16 has a route; give one by --pod-cidr")
}

/// True if an interface is a bridge without ports, as a CNI plugin leaves behind: another range
/// would not match it.
fn is_empty_bridge(interface: &str) -> bool {
    let ports = fs::read_dir(Path::new("/sys/class/net").join(interface).join("brif"));
    ports.is_ok_and(|mut ports| ports.next().is_none())
}

fn first_free_range(routes: &str, leads_nowhere: impl Fn(&str) -> bool) -> Option<String> {
    let taken: Vec<(u32, u32)> = routes
        .lines()
        .skip(1)
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            if leads_nowhere(words.next()?) {
                return None;
            }
            let number = |text: &str| u32::from_str_radix(text, 16).ok().map(u32::from_be);
            let destination = number(words.next()?)?;
            let mask = number(words.nth(5)?)?;
            (mask != 0).then_some((destination, mask))
        })
        .collect();
    (0..=255_u8)
        .map(|third| Ipv4Addr::new(10, 244, third, 0))
        .find_map(|network| {
            let bits = u32::from(network);
            let overlaps = taken.iter().any(|(destination, mask)| {
                let common = mask & 0xffff_ff00;
                destination & common == bits & common
            });
            (!overlaps).then(|| format!("{network}/24"))
        })
}

/// Returns the host name as a node name. A machine whose own name is not set is `localhost`, a name
/// of the API server: the first node of a cluster gets another one.
fn host_name(is_first: bool) -> anyhow::Result<String> {
    let text = fs::read_to_string("/proc/sys/kernel/hostname").context("read the host name")?;
    let name = node_name(&text);
    let is_unset = name.is_empty() || (is_first && name == "localhost");
    Ok(if is_unset { "node".to_owned() } else { name })
}

/// Node name of a host: in lower case, without invalid characters, and no longer than its label.
fn node_name(host: &str) -> String {
    let lower = host.trim().to_lowercase();
    let valid = lower.chars().map(|character| {
        if character.is_ascii_alphanumeric() || character == '.' {
            character
        } else {
            '-'
        }
    });
    let name: String = valid.take(63).collect();
    name.trim_matches(['-', '.']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{Arguments, Command};

    #[test]
    fn nodes_that_join_get_addresses_of_the_same_families() {
        for (first, flags) in [
            ("10.244.0.0/24", ""),
            ("10.9.0.0/24", ""),
            (
                "10.244.0.0/24,fd00:10:244::/64",
                "--cluster-cidr=10.244.0.0/16,fd00:10:244::/56 --node-cidr-mask-size-ipv6=64 \
                 --service-cidr=10.96.0.0/12,fd00:10:96::/112",
            ),
            (
                "fd00:10:244:ab::/64",
                "--cluster-cidr=fd00:10:244::/56 --node-cidr-mask-size-ipv6=64 --service-cidr=fd00:10:96::/112,10.96.0.0/12",
            ),
            ("::/4", ""),
            ("", ""),
        ] {
            assert_eq!(cluster_ranges(first).join(" "), flags, "{first}");
        }
    }

    #[test]
    fn a_host_has_a_name_that_a_node_can_have() {
        for (host, name) in [
            ("Web_1.Example\n", "web-1.example".to_owned()),
            ("-a-", "a".to_owned()),
            ("\u{e9}", String::new()),
            ("x".repeat(64).as_str(), "x".repeat(63)),
        ] {
            assert_eq!(node_name(host), name, "{host}");
        }
    }

    #[test]
    fn a_node_that_joined_has_no_server_of_its_own() {
        let joined = r#"{"node_name": "n", "node_addresses": [], "joined": "https://10.0.0.1:6443"}"#;
        let joined: Settings = serde_json::from_str(joined).unwrap();
        let chosen = Settings::choose(Path::new("/tmp/a"), &UpOptions::default(), Some(&joined)).unwrap();
        assert_eq!((chosen.listen_port, chosen.pod_cidr.as_str()), (0, ""));
        assert!(
            chosen.node_addresses.is_empty() && chosen.joined == joined.joined,
            "{chosen:?}"
        );
    }

    #[test]
    fn addresses_that_were_given_are_kept_as_long_as_the_machine_has_them() {
        for (given, is_kept) in [("127.0.0.9", true), ("192.0.2.7", false)] {
            let given = UpOptions {
                pod_cidr: Some("10.9.0.0/24".into()),
                node_address: vec![given.parse().unwrap()],
                ..UpOptions::default()
            };
            let first = Settings::choose(Path::new("/tmp/a"), &given, None).unwrap();
            assert_eq!(first.node_addresses, given.node_address);
            let kept: Settings = serde_json::from_slice(&serde_json::to_vec(&first).unwrap()).unwrap();
            let again = Settings::choose(Path::new("/tmp/a"), &UpOptions::default(), Some(&kept)).unwrap();
            assert_eq!(again.node_addresses == given.node_address, is_kept, "{again:?}");
        }
    }

    #[test]
    fn the_bounds_of_the_past_are_kept_and_handed_on() {
        let words = [
            "skiff",
            "up",
            "--pod-cidr=10.9.0.0/24",
            "--history-days=30",
            "--history-mib=512",
        ];
        let given = <Arguments as clap::Parser>::parse_from(words);
        let Command::Up(given) = given.command else {
            panic!("another command")
        };
        let first = Settings::choose(Path::new("/tmp/a"), &given, None).unwrap();
        let kept: Settings = serde_json::from_slice(&serde_json::to_vec(&first).unwrap()).unwrap();
        let changed = History {
            history_days: Some(3),
            history_mib: None,
        };
        for (history, flags) in [
            (History::default(), ["--history-days=30", "--history-mib=512"]),
            (changed, ["--history-days=3", "--history-mib=512"]),
        ] {
            let options = UpOptions {
                history,
                ..UpOptions::default()
            };
            let settings = Settings::choose(Path::new("/tmp/a"), &options, Some(&kept)).unwrap();
            assert_eq!(settings.history.flags().collect::<Vec<_>>(), flags);
        }
    }

    #[test]
    fn ranges_with_routes_are_left_alone() {
        let header = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n";
        let default = "eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n";
        assert_eq!(
            first_free_range(&format!("{header}{default}"), |_| false).unwrap(),
            "10.244.0.0/24"
        );
        let first = "skiff0\t0000F40A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        assert_eq!(
            first_free_range(&format!("{header}{default}{first}"), |_| false).unwrap(),
            "10.244.1.0/24"
        );
        assert_eq!(
            first_free_range(&format!("{header}{default}{first}"), |interface| interface == "skiff0").unwrap(),
            "10.244.0.0/24"
        );
        let all = "x\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0\n";
        assert_eq!(first_free_range(&format!("{header}{all}"), |_| false), None);
    }

    #[test]
    fn directories_have_names_of_their_own() {
        let choose = |path: &str| {
            Settings::choose(
                Path::new(path),
                &UpOptions {
                    pod_cidr: Some("10.9.0.0/24".into()),
                    ..UpOptions::default()
                },
                None,
            )
            .unwrap()
        };
        let (first, second) = (choose("/tmp/a"), choose("/tmp/b"));
        assert_ne!(first.bridge, second.bridge);
        assert_ne!(first.cgroup_root, second.cgroup_root);
        assert_eq!(choose("/var/lib/skiff").bridge, "skiff0");
        let again = Settings::choose(Path::new("/tmp/a"), &UpOptions::default(), Some(&first)).unwrap();
        assert_eq!(
            (again.listen_port, &again.pod_cidr),
            (first.listen_port, &first.pod_cidr)
        );
    }

    #[test]
    fn what_is_restored_elsewhere_chooses_for_itself() {
        let restored = r#"{"node_name": "n", "node_addresses": []}"#;
        let restored: Settings = serde_json::from_str(restored).unwrap();
        let options = UpOptions {
            pod_cidr: Some("10.9.0.0/24".into()),
            ..UpOptions::default()
        };
        let chosen = Settings::choose(Path::new("/tmp/a"), &options, Some(&restored)).unwrap();
        assert_eq!(chosen.node_name, "n");
        assert!(chosen.listen_port >= 6443 && chosen.agent_port >= 10250);
        assert!(
            chosen.bridge.starts_with("skiff-") && chosen.cgroup_root.starts_with("skiff-"),
            "{chosen:?}"
        );
    }

    #[test]
    fn a_file_that_a_power_cut_left_empty_is_none() {
        let directory = std::env::temp_dir().join(format!("skiff-ctl-settings-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        assert_eq!(Settings::read(&directory).unwrap(), None);
        fs::write(directory.join(FILE), "").unwrap();
        assert_eq!(Settings::read(&directory).unwrap(), None);
        let restored = r#"{"node_name": "n", "node_addresses": []}"#;
        let settings: Settings = serde_json::from_str(restored).unwrap();
        settings.write(&directory).unwrap();
        assert_eq!(Settings::read(&directory).unwrap(), Some(settings));
        fs::write(directory.join(FILE), "{").unwrap();
        assert!(Settings::read(&directory).is_err());
        fs::remove_dir_all(&directory).unwrap();
    }
}
