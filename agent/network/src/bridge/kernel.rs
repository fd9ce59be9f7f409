//! Links, addresses and routes, by rtnetlink.

mod nodes;
mod ownership;
mod routes;
pub(super) mod settings;
mod tunnel;

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::pin::{Pin, pin};

use futures::TryStreamExt as _;
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags};
use rtnetlink::packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoVeth, LinkAttribute, LinkExtentMask, LinkFlags,
    LinkMessage,
};
use rtnetlink::packet_route::neighbour::{NeighbourFlags, NeighbourState};
use rtnetlink::{Handle, LinkBridgePort, LinkUnspec, LinkVeth};
use tokio::task::JoinSet;

pub(super) use tunnel::Mark;

use super::sandbox::namespace;
use super::{finish, note};
use crate::{Attachment, Cidr, Error, Ranges};
use routes::{hardware_address, last_resort, mtu};

/// Netlink connection to the network namespace that the calling thread was in when it was opened.
pub(crate) struct Kernel {
    runtime: Executor,
    host: Socket,
}

/// Executor of the calling thread. Polls a future through a pointer: tokio's is large, and would be
/// compiled for each future.
struct Executor(tokio::runtime::Runtime);

impl Executor {
    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let future: Pin<&mut dyn Future<Output = T>> = pin!(future);
        self.0.block_on(future)
    }
}

struct Socket {
    handle: Handle,
    #[expect(dead_code, reason = "drives the socket for as long as the handle is used")]
    driver: JoinSet<()>,
}

/// Opens a socket in the calling thread's namespace and does `work` with it.
pub(crate) fn with<T>(work: impl FnOnce(&Kernel) -> Result<T, Error>) -> Result<T, Error> {
    let failed = |source| {
        Error::io(
            "open a netlink socket in",
            Path::new("/proc/thread-self/ns/net"),
            source,
        )
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map(Executor)
        .map_err(failed)?;
    let host = runtime.block_on(async { Socket::open() }).map_err(failed)?;
    work(&Kernel { runtime, host })
}

impl Socket {
    fn open() -> std::io::Result<Self> {
        let (connection, handle, _) = rtnetlink::new_connection()?;
        let mut driver = JoinSet::new();
        driver.spawn(connection);
        Ok(Self { handle, driver })
    }

    async fn link(&self, name: &str) -> Result<Option<LinkMessage>, Error> {
        let found = self
            .handle
            .link()
            .get()
            .match_name(name.to_owned())
            .set_filter_mask(AddressFamily::Unspec, vec![LinkExtentMask::SkipStats])
            .execute()
            .try_next()
            .await;
        match found {
            Ok(link) => Ok(link),
            Err(error) if is(&error, Errno::ENODEV) => Ok(None),
            Err(error) => Err(refused("look up an interface", &error)),
        }
    }

    async fn existing(&self, name: &str) -> Result<LinkMessage, Error> {
        self.link(name).await?.ok_or_else(|| Error::Kernel {
            doing: "look up an interface",
            cause: format!("{name} does not exist"),
        })
    }

    async fn index(&self, name: &str) -> Result<u32, Error> {
        Ok(self.existing(name).await?.header.index)
    }

    async fn remove(&self, index: u32) -> Result<(), Error> {
        let gone = self.handle.link().del(index).execute().await;
        accept(gone, Errno::ENODEV, "delete an interface")
    }

    /// Adds an address without duplicate address detection: the node's ranges are its own.
    async fn give(&self, index: u32, held: Cidr, mut flags: AddressFlags) -> Result<(), rtnetlink::Error> {
        let mut request = self.handle.address().add(index, held.address, held.prefix);
        if held.is_ipv6() {
            flags |= AddressFlags::Nodad;
        }
        let attributes = &mut request.message_mut().attributes;
        attributes.push(AddressAttribute::Flags(flags));
        request.execute().await
    }

    /// Adds a permanent neighbor entry. The kernel has one table for all network namespaces, which
    /// a pod can fill by sending to addresses that nobody has: permanent entries neither count nor
    /// go.
    async fn add_neighbor(&self, index: u32, address: IpAddr, hardware: &[u8]) -> Result<(), Error> {
        let entry = self.handle.neighbours().add(index, address);
        let added = entry.link_layer_address(hardware).replace().execute().await;
        added.map_err(|error| refused("add a neighbor", &error))
    }

    /// Adds the neighbor entries of a pod, and its port to the bridge's forwarding table: without
    /// neighbor discovery the bridge would learn of it only from what the pod sends, and copy what
    /// it gets before to all ports.
    async fn add_neighbors(&self, bridge: u32, port: u32, attachment: &Attachment) -> Result<(), Error> {
        let hardware = hardware(attachment).unwrap_or_default();
        let entry = self.handle.neighbours().add_bridge(port, &hardware);
        let entry = entry.flags(NeighbourFlags::Controller).state(NeighbourState::Noarp);
        let added = entry.replace().execute().await;
        added.map_err(|error| refused("tell the bridge of a port", &error))?;
        for held in &attachment.addresses {
            self.add_neighbor(bridge, held.address, &hardware).await?;
        }
        Ok(())
    }

    /// MTU of the interface of a family's default route.
    async fn uplink_mtu(&self, v6: bool) -> Result<Option<u32>, Error> {
        let mut routes = self.handle.route().get(routes::all(v6)).execute();
        while let Some(route) = routes
            .try_next()
            .await
            .map_err(|error| refused("list routes", &error))?
        {
            let Some(index) = routes::uplink(&route) else { continue };
            let mut links = self.handle.link().get().match_index(index).execute();
            let link = links
                .try_next()
                .await
                .map_err(|error| refused("look up the uplink", &error))?;
            if let Some(mtu) = link.and_then(|link| mtu(&link)) {
                return Ok(Some(mtu));
            }
        }
        Ok(None)
    }
}

impl Kernel {
    /// Creates the bridge with its owner's mark and the gateways' addresses, and the routes to it.
    pub(super) fn prepare(&self, bridge: &str, mark: &Mark, ranges: Ranges) -> Result<(), Error> {
        let mtu = self.mtu(bridge, ranges, mark, None)?;
        self.runtime.block_on(async {
            let (host, links) = (&self.host, self.host.handle.link());
            let first = ranges.of_family(false).or(ranges.of_family(true));
            let hardware = first.map(|first| hardware_address(first.gateway())).unwrap_or_default();
            if host.link(bridge).await?.is_none() {
                let made = links.add(routes::bridge(bridge, &hardware)).execute().await;
                accept(made, Errno::EEXIST, "create the bridge")?;
            }
            settings::of_bridge(bridge, ranges.of_family(true).is_some())?;
            let index = host.index(bridge).await?;
            let mark = LinkAttribute::IfAlias(mark.owner.clone());
            let change = LinkUnspec::new_with_index(index).append_extra_attribute(mark);
            let mut change = change.mtu(mtu).up();
            if !hardware.is_empty() {
                change = change.address(hardware.clone());
            }
            links
                .set(change.build())
                .execute()
                .await
                .map_err(|error| refused("set up the bridge", &error))?;
            let own = ranges.of_family(true).map(|_| routes::link_local(&hardware));
            for held in ranges.iter().map(|range| range.at(1)).chain(own) {
                let given = host.give(index, held, AddressFlags::empty()).await;
                accept(given, Errno::EEXIST, "give the bridge its address")?;
            }
            for range in ranges.iter() {
                for route in [routes::connected(range, index), last_resort(range)] {
                    let made = host.handle.route().add(route).execute().await;
                    accept(made, Errno::EEXIST, "add the routes to the pods")?;
                }
            }
            Ok(())
        })
    }

    /// True if the bridge is up and has the gateways' addresses.
    pub(super) fn is_whole(&self, bridge: &str, ranges: Ranges) -> Result<bool, Error> {
        self.runtime.block_on(async {
            let found = self.host.link(bridge).await?;
            let Some(link) = found.filter(|link| link.header.flags.contains(LinkFlags::Up)) else {
                return Ok(false);
            };
            let mut lacking: Vec<IpAddr> = ranges.iter().map(Cidr::gateway).collect();
            let all = self.host.handle.address().get();
            let mut all = all.set_link_index_filter(link.header.index).execute();
            let failed = |error| refused("list addresses", &error);
            while let Some(held) = all.try_next().await.map_err(failed)? {
                lacking.retain(|address| !held.attributes.contains(&AddressAttribute::Address(*address)));
            }
            Ok(lacking.is_empty())
        })
    }

    /// Adds the neighbor entries of pods to the bridge: the kernel deletes them when the bridge's
    /// hardware address is set. Goes on past failures.
    pub(super) fn add_neighbors(&self, bridge: &str, pods: &[(String, Attachment)]) -> Result<(), Error> {
        self.runtime.block_on(async {
            let index = self.host.index(bridge).await?;
            let mut failures = Vec::new();
            for (link, attachment) in pods {
                let found = self.host.link(link).await?;
                // A link that is gone or on no bridge comes with its entries when it is mended.
                if let Some(port) = found.filter(|found| routes::controller(found) == Some(index)) {
                    let added = self.host.add_neighbors(index, port.header.index, attachment).await;
                    // A pod may leave meanwhile.
                    if added.is_err() && self.host.link(link).await?.is_some() {
                        note(&mut failures, added);
                    }
                }
            }
            finish(failures)
        })
    }

    /// Deletes the neighbor entries of a pod. Succeeds if there are none.
    pub(super) fn remove_neighbors(&self, bridge: &str, attachment: &Attachment) -> Result<(), Error> {
        self.runtime.block_on(async {
            let Some(bridge) = self.host.link(bridge).await? else {
                return Ok(());
            };
            for held in &attachment.addresses {
                let table = self.host.handle.neighbours();
                let entry = table.add(bridge.header.index, held.address).message_mut().clone();
                let gone = table.del(entry).execute().await;
                accept(gone, Errno::ENOENT, "delete a neighbor")?;
            }
            Ok(())
        })
    }

    /// Creates the sandbox's namespace and connects it to the bridge. The calling thread stays in
    /// its namespace. The bind mount comes last: if this process is killed before, everything is
    /// deleted with the namespace, and a mounted one is complete.
    pub(super) fn attach(
        &self,
        bridge: &str,
        link: &str,
        attachment: &Attachment,
        user_ids: Option<u32>,
    ) -> Result<(), Error> {
        // A link of this name is left over from an attempt that crashed.
        self.remove_link(bridge, link)?;
        namespace::release(&attachment.netns)?;
        let (inside, namespace) = self.enter_new(attachment, user_ids)?;
        self.connect(bridge, link, attachment, &inside)?;
        failpoint::reach("connected");
        namespace::hold(&namespace, &attachment.netns)
    }

    /// Connects an existing namespace: one that another program created, or this one whose link was
    /// deleted.
    pub(super) fn join(&self, bridge: &str, link: &str, attachment: &Attachment) -> Result<(), Error> {
        // A link of this name is left over from an attempt that crashed, or was removed from the
        // bridge.
        self.remove_link(bridge, link)?;
        let (inside, _) = self.enter_by(&attachment.netns, || namespace::join(&attachment.netns))?;
        self.connect(bridge, link, attachment, &inside)?;
        self.enter_by(&attachment.netns, || {
            let namespace = namespace::join(&attachment.netns)?;
            settings::of_joined(&attachment.interface, has_ipv6(attachment))?;
            Ok(namespace)
        })
        .map(drop)
    }

    /// True if a link is a port of the bridge.
    pub(super) fn is_port(&self, bridge: &str, name: &str) -> Result<bool, Error> {
        let link = self.runtime.block_on(self.host.link(name))?;
        Ok(link
            .and_then(|link| routes::controller(&link))
            .is_some_and(|index| is_index_of(index, bridge)))
    }

    /// Creates a namespace and opens a netlink socket in it, on a thread that ends there.
    fn enter_new(&self, attachment: &Attachment, user_ids: Option<u32>) -> Result<(Socket, File), Error> {
        self.enter_by(&attachment.netns, || {
            let namespace = namespace::enter(&attachment.netns, user_ids)?;
            settings::of_new_namespace(has_ipv6(attachment))?;
            Ok(namespace)
        })
    }

    fn enter_by(
        &self,
        netns: &Path,
        enter: impl FnOnce() -> Result<File, Error> + Send,
    ) -> Result<(Socket, File), Error> {
        let make = || {
            let _driven = self.runtime.0.enter();
            let namespace = enter()?;
            let socket = Socket::open().map_err(|source| Error::io("open a socket in", netns, source))?;
            Ok((socket, namespace))
        };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("namespace".to_owned());
            let thread = thread.spawn_scoped(scope, make);
            let thread = thread.map_err(|source| Error::io("start a thread for", netns, source))?;
            thread.join().unwrap_or_else(|_panic| {
                Err(Error::Kernel {
                    doing: "make a namespace",
                    cause: "the thread ended without an answer".to_owned(),
                })
            })
        })
    }

    fn connect(&self, bridge: &str, link: &str, attachment: &Attachment, inside: &Socket) -> Result<(), Error> {
        let path = Path::new("/proc/thread-self/ns/net");
        let outside = File::open(path).map_err(|source| Error::io("open", path, source))?;
        self.runtime.block_on(async {
            let bridge = self.host.existing(bridge).await?;
            let mtu = mtu(&bridge).unwrap_or(1500);
            let peer = LinkUnspec::new_with_name(link)
                .mtu(mtu)
                .setns_by_fd(outside.as_raw_fd())
                .build();
            inside.fill(attachment, mtu, peer).await?;
            let links = self.host.handle.link();
            let index = self.host.index(link).await?;
            let change = LinkUnspec::new_with_index(index).controller(bridge.header.index);
            let changed = links.set(change.build()).execute().await;
            changed.map_err(|error| refused("connect to the bridge", &error))?;
            // The bridge has addresses; its ports need none.
            self.host.keep_from_linking(index).await?;
            self.host.add_neighbors(bridge.header.index, index, attachment).await?;
            // Hairpin mode: a pod may reach itself through a translated address.
            let port = LinkBridgePort::new(index).hairpin(true).up().build();
            links
                .set_port(port)
                .execute()
                .await
                .map_err(|error| refused("set the bridge port", &error))
        })
    }

    /// Brings up the loopback of the namespace that the calling thread is in.
    pub(crate) fn raise_loopback(&self) -> Result<(), Error> {
        self.runtime.block_on(self.host.raise_loopback())
    }
}

impl Socket {
    async fn raise_loopback(&self) -> Result<(), Error> {
        let lo = LinkUnspec::new_with_name("lo").up().build();
        let raised = self.handle.link().set(lo).execute().await;
        raised.map_err(|error| refused("bring up the loopback", &error))
    }

    /// Disables the IPv6 link-local address of an interface that is not in use yet: its multicast
    /// messages would wake every pod of the node.
    async fn keep_from_linking(&self, index: u32) -> Result<(), Error> {
        let mode = AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)]);
        let change = LinkUnspec::new_with_index(index).append_extra_attribute(LinkAttribute::AfSpecUnspec(vec![mode]));
        let changed = self.handle.link().set(change.build()).execute().await;
        // A kernel without IPv6, or an interface whose MTU is too small for it.
        accept(
            changed,
            Errno::EAFNOSUPPORT,
            "keep an interface from making itself an address",
        )
    }

    /// Configures the sandbox's namespace: loopback, veth pair, and the address and default route
    /// of each family. Only the gateway is on the link: pods of one node, too, reach each other
    /// through it, as Calico's do, so that its permanent neighbor entry is all that a pod needs.
    async fn fill(&self, attachment: &Attachment, mtu: u32, peer: LinkMessage) -> Result<(), Error> {
        self.raise_loopback().await?;
        let links = self.handle.link();
        let mut pair = LinkVeth::new(&attachment.interface, "peer")
            .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
            .mtu(mtu)
            .up();
        if let Some(first) = hardware(attachment) {
            pair = pair.address(first);
        }
        links
            .add(pair.build())
            .execute()
            .await
            .map_err(|error| refused("create the veth pair", &error))?;
        let index = self.index(&attachment.interface).await?;
        if !has_ipv6(attachment) {
            self.keep_from_linking(index).await?;
        }
        let bridge = first(attachment).map(|held| hardware_address(held.gateway()));
        let bridge = bridge.unwrap_or_default();
        for held in &attachment.addresses {
            self.give(index, *held, AddressFlags::Noprefixroute)
                .await
                .map_err(|error| refused("give the pod its address", &error))?;
            self.add_neighbor(index, held.gateway(), &bridge).await?;
            for route in [
                routes::gateway_route(held.gateway(), index),
                routes::default_route(held.gateway(), index),
            ] {
                let added = self.handle.route().add(route).execute().await;
                added.map_err(|error| refused("add the default route", &error))?;
            }
        }
        Ok(())
    }
}

pub(super) fn is_index_of(index: u32, name: &str) -> bool {
    if_nametoindex(name).is_ok_and(|found| found == index)
}

fn has_ipv6(attachment: &Attachment) -> bool {
    attachment.addresses.iter().any(|held| held.is_ipv6())
}

/// Address from which hardware addresses are derived: the pod's IPv4 address, if it has one.
fn first(attachment: &Attachment) -> Option<&Cidr> {
    let of = |v6: bool| attachment.addresses.iter().find(move |held| held.is_ipv6() == v6);
    of(false).or(of(true))
}

/// Hardware address of the pod's interface.
pub(super) fn hardware(attachment: &Attachment) -> Option<Vec<u8>> {
    first(attachment).map(|held| hardware_address(held.address))
}

/// IPv6 link-local address of a pod's interface.
pub(super) fn link_local(attachment: &Attachment, hardware: &[u8]) -> Vec<IpAddr> {
    let made = has_ipv6(attachment).then(|| routes::link_local(hardware).address);
    made.into_iter().collect()
}

fn is(error: &rtnetlink::Error, number: Errno) -> bool {
    matches!(error, rtnetlink::Error::NetlinkError(message) if message.raw_code() == -(number as i32))
}

fn refused(doing: &'static str, error: &rtnetlink::Error) -> Error {
    Error::Kernel {
        doing,
        cause: error.to_string(),
    }
}

/// Treats the error `already` as success.
fn accept(result: Result<(), rtnetlink::Error>, already: Errno, doing: &'static str) -> Result<(), Error> {
    match result {
        Err(error) if !is(&error, already) => Err(refused(doing, &error)),
        Ok(()) | Err(_) => Ok(()),
    }
}
