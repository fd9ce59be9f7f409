//! The command line.

mod backends;
mod machines;
mod nodes;
pub(crate) mod past;
mod store;

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

pub(crate) use backends::Backends;
pub(crate) use machines::{CheckOptions, Part, UninstallOptions, UpgradeOptions};
pub(crate) use nodes::{JoinOptions, TokenCommand, TokenOptions};
pub(crate) use past::{DiffOptions, EventsOptions, History, HistoryOptions, SqlOptions, TraceOptions, UndeleteOptions};
pub(crate) use store::{MoveOptions, StoreCommand};

pub(crate) const DEFAULT_STATE: &str = "/var/lib/skiff";

/// Real containers on Linux nodes through the Kubernetes API.
#[derive(Parser)]
#[command(name = "skiff", version)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) place: Place,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Which cluster is meant.
#[derive(Args)]
pub(crate) struct Place {
    /// Directory of a cluster on this machine [default: /var/lib/skiff]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Kubeconfig [default: the one of --state-dir, else $KUBECONFIG, else the one of the default directory, else that of this
    /// machine's node]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
}

impl Place {
    /// The state directory, made absolute.
    pub(crate) fn state_dir(&self) -> PathBuf {
        let given = self.state_dir.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_STATE));
        std::path::absolute(&given).unwrap_or(given)
    }

    /// Tells whether nobody names a directory, or the usual one.
    pub(crate) fn is_default(&self) -> bool {
        self.state_dir() == std::path::Path::new(DEFAULT_STATE)
    }

    /// Hint at the command that starts a cluster in the state directory.
    pub(crate) fn start(&self) -> String {
        match &self.state_dir {
            Some(given) => format!("`skiff up --state-dir {}` starts one", crate::terminal::quoted(given)),
            None => "`skiff up` starts one".to_owned(),
        }
    }
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Start a cluster of one node on this machine
    Up(Box<UpOptions>),
    /// Stop its pods and daemons and remove what they made on the machine
    Down(DownOptions),
    /// Say what this machine lacks to be a cluster or a node, and how to mend it (exit code 1 when something fails)
    Check(CheckOptions),
    /// Write the whole cluster (objects, authority, keys) into one file, while it runs
    Backup(BackupOptions),
    /// Make a cluster from such a file on a machine where there is none; `up` starts it
    Restore(BackupOptions),
    /// Look after where the control plane keeps its objects
    #[command(subcommand)]
    Store(StoreCommand),
    /// Say what runs and what is Ready
    Status,
    /// Make, list and delete tokens by which other machines join the cluster as nodes
    #[command(subcommand)]
    Token(TokenCommand),
    /// Make this machine a node of a cluster, by the line that `skiff token create` prints
    Join(Box<JoinOptions>),
    /// Undo a join: stop the node's pods and agent and remove all that is theirs on this machine
    Leave,
    /// Replace the programs of this machine and start the daemons again; pods go on. What does not become Ready goes back
    Upgrade(UpgradeOptions),
    /// Remove everything of Skiff's from this machine (node, cluster, units, programs), and list what is left, if anything
    Uninstall(UninstallOptions),
    /// List or show resources
    Get(GetOptions),
    /// Show one resource with its events
    Describe(TargetOptions),
    /// Create or change resources from files
    Apply(FilesOptions),
    /// Delete resources by name, selector or file
    Delete(DeleteOptions),
    /// List the versions of a resource: when, by whom, and what changed
    History(HistoryOptions),
    /// Show how a resource differs between two points of its past
    Diff(DiffOptions),
    /// Make a deleted resource anew, as it was
    Undelete(UndeleteOptions),
    /// Ask this machine's control plane by SQL: objects, their past and the audit log
    Sql(SqlOptions),
    /// List events, rollouts that fail and nodes that are not Ready
    Events(EventsOptions),
    /// Print a container's log
    Logs(LogsOptions),
    /// Run a program in a container; ends with its exit code
    Exec(ExecOptions),
    /// Join the program that a container runs
    Attach(AttachOptions),
    /// Forward local ports to a pod
    PortForward(ForwardOptions),
    /// Copy files from and to a container, which must have tar
    Cp(CopyOptions),
    /// Set the number of replicas
    Scale(ScaleOptions),
    /// Fill a folder with what controller-runtime's envtest starts, and print its path, for `KUBEBUILDER_ASSETS`
    TestAssets(TestAssetsOptions),
    /// Watch, list and undo rollouts
    #[command(subcommand)]
    Rollout(RolloutCommand),
    /// Import, pull and list the images of this machine's node
    #[command(subcommand)]
    Image(ImageCommand),
    /// Show how a Deployment became containers, step by step with milliseconds
    Trace(TraceOptions),
    /// Print a link that logs a browser into the page of the cluster, and open it where there is a browser
    Ui(UiOptions),
    /// Say what is wrong with a pod, a workload, a Service, a node or a connection, and what to do (exit code 1 when something is)
    Why(past::WhyOptions),
}

/// What a new cluster is like. Kept in the state directory: later `up`s need no flags.
#[derive(Args, Default, PartialEq, Eq)]
pub(crate) struct UpOptions {
    /// Port of the API server, at every address of this machine: its pods are among those that ask it [default: 6443, or the
    /// next free one]
    #[arg(long, value_name = "PORT")]
    pub(crate) listen_port: Option<u16>,
    /// Port of the node agent [default: 10250, or the next free one]
    #[arg(long, value_name = "PORT")]
    pub(crate) agent_port: Option<u16>,
    /// Addresses of the pods; with a comma, a range of each family [default: 10.244.0.0/24, or the next range without a route]
    #[arg(long, value_name = "CIDR")]
    pub(crate) pod_cidr: Option<String>,
    /// Name of the node [default: the host name]
    #[arg(long, value_name = "NAME")]
    pub(crate) node_name: Option<String>,
    /// Name of the bridge [default: skiff0, or one derived from the state directory]
    #[arg(long, value_name = "NAME")]
    pub(crate) bridge: Option<String>,
    /// Control group that holds the pods [default: skiff, or one derived from the state directory]
    #[arg(long, value_name = "PATH")]
    pub(crate) cgroup_root: Option<String>,
    /// Address of the node; may be repeated [default: the one towards the default route, unless NAT gives it to every machine]
    #[arg(long, value_name = "IP")]
    pub(crate) node_address: Vec<IpAddr>,
    /// Name or address by which other machines reach the API server, for its certificate and for nodes that join; may be
    /// repeated, and the first one is what they are told [default: that of --node-address]
    #[arg(long, value_name = "NAME")]
    pub(crate) advertise: Vec<String>,
    /// Addresses that Services which want a load balancer get: `nodes` for those of the nodes, or ranges such as 192.0.2.0/28
    /// or 192.0.2.10-192.0.2.20, which nodes announce on their links [default: none]
    #[arg(long, value_name = "ADDRESSES")]
    pub(crate) load_balancer_addresses: Option<String>,
    #[command(flatten)]
    pub(crate) history: History,
    /// Begin although `skiff check` finds that the machine lacks something
    #[arg(long)]
    pub(crate) skip_checks: bool,
    #[command(flatten)]
    pub(crate) backends: Backends,
}

#[derive(Args)]
pub(crate) struct UiOptions {
    /// Print the link alone
    #[arg(long)]
    pub(crate) no_open: bool,
}

#[derive(Args)]
pub(crate) struct DownOptions {
    /// Remove the state directory, too
    #[arg(long)]
    pub(crate) purge: bool,
}

#[derive(Args)]
pub(crate) struct BackupOptions {
    /// The backup
    pub(crate) file: PathBuf,
}

#[derive(Args)]
pub(crate) struct TestAssetsOptions {
    /// The folder; it is made where it is missing
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
}

#[derive(Args)]
pub(crate) struct Scope {
    /// Namespace
    #[arg(short, long, default_value = "default")]
    pub(crate) namespace: String,
}

#[derive(Args)]
pub(crate) struct GetOptions {
    /// TYPE[,TYPE…] [NAME…], or TYPE/NAME…
    #[arg(required = true, value_name = "RESOURCE")]
    pub(crate) targets: Vec<String>,
    #[command(flatten)]
    pub(crate) scope: Scope,
    /// Every namespace
    #[arg(short = 'A', long)]
    pub(crate) all_namespaces: bool,
    /// Label selector
    #[arg(short = 'l', long)]
    pub(crate) selector: Option<String>,
    /// Output: wide, yaml, json or name
    #[arg(short, long, value_parser = ["wide", "yaml", "json", "name"])]
    pub(crate) output: Option<String>,
    /// Go on printing changes
    #[arg(short, long, conflicts_with = "at")]
    pub(crate) watch: bool,
    /// As it was: at a time (2026-01-02T03:04:05Z), so long ago (10m, 3d), or at a revision
    #[arg(long, value_name = "TIME|REVISION")]
    pub(crate) at: Option<String>,
}

#[derive(Args)]
pub(crate) struct TargetOptions {
    /// TYPE/NAME, or TYPE NAME
    #[arg(required = true, num_args = 1..=2, value_name = "RESOURCE")]
    pub(crate) target: Vec<String>,
    #[command(flatten)]
    pub(crate) scope: Scope,
}

#[derive(Args)]
pub(crate) struct FilesOptions {
    /// File or directory with YAML or JSON; - is standard input
    #[arg(short, long = "filename", required = true, value_name = "FILE")]
    pub(crate) files: Vec<String>,
    #[command(flatten)]
    pub(crate) scope: Scope,
}

#[derive(Args)]
pub(crate) struct DeleteOptions {
    /// TYPE NAME…, or TYPE/NAME…, or TYPE with -l
    #[arg(value_name = "RESOURCE")]
    pub(crate) targets: Vec<String>,
    /// File or directory with YAML or JSON; - is standard input
    #[arg(short, long = "filename", value_name = "FILE")]
    pub(crate) files: Vec<String>,
    /// Label selector
    #[arg(short = 'l', long)]
    pub(crate) selector: Option<String>,
    #[command(flatten)]
    pub(crate) scope: Scope,
    /// Seconds that pods get to end
    #[arg(long)]
    pub(crate) grace_period: Option<i64>,
    /// What becomes of owned objects
    #[arg(long, default_value = "background", value_parser = ["background", "foreground", "orphan"])]
    pub(crate) cascade: String,
    /// Succeed when there is no such object
    #[arg(long)]
    pub(crate) ignore_not_found: bool,
    /// Return without waiting until it is gone
    #[arg(long)]
    pub(crate) no_wait: bool,
}

#[derive(Args)]
pub(crate) struct LogsOptions {
    /// POD, pod/NAME, or deployment/NAME for the first of its pods
    #[arg(value_name = "POD", required_unless_present = "selector")]
    pub(crate) target: Option<String>,
    #[command(flatten)]
    pub(crate) scope: Scope,
    /// Container
    #[arg(short, long)]
    pub(crate) container: Option<String>,
    /// Go on printing
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// The instance before the last restart
    #[arg(short, long)]
    pub(crate) previous: bool,
    /// Lines from the end
    #[arg(long)]
    pub(crate) tail: Option<i64>,
    /// Put times before lines
    #[arg(long)]
    pub(crate) timestamps: bool,
    /// Every pod with these labels
    #[arg(short = 'l', long)]
    pub(crate) selector: Option<String>,
}

#[derive(Args)]
pub(crate) struct SessionOptions {
    #[command(flatten)]
    pub(crate) scope: Scope,
    /// Container
    #[arg(short, long)]
    pub(crate) container: Option<String>,
    /// Hand on standard input
    #[arg(short = 'i', long)]
    pub(crate) stdin: bool,
    /// With a terminal
    #[arg(short, long)]
    pub(crate) tty: bool,
}

#[derive(Args)]
pub(crate) struct ExecOptions {
    /// POD, pod/NAME, or deployment/NAME for the first of its pods
    #[arg(value_name = "POD")]
    pub(crate) target: String,
    #[command(flatten)]
    pub(crate) session: SessionOptions,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

#[derive(Args)]
pub(crate) struct AttachOptions {
    /// POD, pod/NAME, or deployment/NAME for the first of its pods
    #[arg(value_name = "POD")]
    pub(crate) target: String,
    #[command(flatten)]
    pub(crate) session: SessionOptions,
}

#[derive(Args)]
pub(crate) struct ForwardOptions {
    /// POD, pod/NAME, or deployment/NAME for the first of its pods
    #[arg(value_name = "POD")]
    pub(crate) target: String,
    #[command(flatten)]
    pub(crate) scope: Scope,
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1", value_name = "IP")]
    pub(crate) address: IpAddr,
    /// `LOCAL:REMOTE`, or `REMOTE` for the same on both sides; an empty or zero `LOCAL` is any free port
    #[arg(required = true, value_name = "PORT")]
    pub(crate) ports: Vec<String>,
}

#[derive(Args)]
pub(crate) struct CopyOptions {
    /// A local path, or [NAMESPACE/]POD:PATH
    pub(crate) from: String,
    /// A local path, or [NAMESPACE/]POD:PATH
    pub(crate) to: String,
    #[command(flatten)]
    pub(crate) scope: Scope,
    /// Container
    #[arg(short, long)]
    pub(crate) container: Option<String>,
}

#[derive(Args)]
pub(crate) struct ScaleOptions {
    /// TYPE/NAME, or TYPE NAME
    #[arg(required = true, num_args = 1..=2, value_name = "RESOURCE")]
    pub(crate) target: Vec<String>,
    /// The number
    #[arg(long)]
    pub(crate) replicas: u32,
    #[command(flatten)]
    pub(crate) scope: Scope,
}

#[derive(Subcommand)]
pub(crate) enum RolloutCommand {
    /// Wait until a rollout is done
    Status(RolloutStatusOptions),
    /// List the revisions
    History(TargetOptions),
    /// Go back to an earlier revision
    Undo(UndoOptions),
}

#[derive(Args)]
pub(crate) struct RolloutStatusOptions {
    #[command(flatten)]
    pub(crate) target: TargetOptions,
    /// Give up after this many seconds
    #[arg(long, default_value = "600")]
    pub(crate) timeout: u64,
}

#[derive(Args)]
pub(crate) struct UndoOptions {
    #[command(flatten)]
    pub(crate) target: TargetOptions,
    /// Revision [default: the one before the current]
    #[arg(long)]
    pub(crate) to_revision: Option<u64>,
}

#[derive(Subcommand)]
pub(crate) enum ImageCommand {
    /// Import OCI or docker-save archives into the node of this machine
    Import {
        /// Archive (tar, also gzip or zstd), or a directory with the same; - is standard input
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Name of the image, where the archive has none or another one
        #[arg(long)]
        name: Option<String>,
    },
    /// Pull an image from its registry to the node of this machine
    Pull(PullOptions),
    /// List the images of the node of this machine
    #[command(visible_alias = "ls")]
    List,
    /// Write an image of the node of this machine to an OCI archive that `docker load` takes too
    Export {
        /// The image, as pods name it, or its id
        #[arg(value_name = "IMAGE")]
        name: String,
        /// Where to; - for the standard output
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
    /// Remove the images of the node of this machine that no pod uses, and tell what was freed
    Prune {
        /// Those too that were imported: no registry need have them
        #[arg(short, long)]
        all: bool,
    },
}

#[derive(Args)]
pub(crate) struct PullOptions {
    /// The image, as pods name it
    #[arg(value_name = "IMAGE")]
    pub(crate) name: String,
    /// What the registry wants to know
    #[arg(long, value_name = "USER:PASSWORD")]
    pub(crate) creds: Option<String>,
}
