//! `skiff`: starts and stops a cluster on this machine, and is a client of any cluster's public
//! API.
//!
//! It is independent of kinds: resources come from discovery, columns from the server's Tables.
//!
//! * `arguments`: the command line; `client`: requests to the API server, resources and pods by name
//! * `objects`, `streams`: commands on objects, and those that stream from and to containers
//! * `why`, `trace`: explanations of problems and of times; `image`, `ui`: images and the page
//! * `cluster`, `check`: a cluster or a node on this machine, and what the machine lacks
//!
//! Exit codes: 0 success, 1 failure, 2 usage error; `exec` and `attach` return the program's own.

mod arguments;
mod check;
mod client;
mod cluster;
mod image;
mod netlink;
mod objects;
mod streams;
mod terminal;
mod trace;
mod ui;
mod why;

use std::process::ExitCode;

use arguments::{Arguments, Command, StoreCommand};
use clap::Parser as _;

fn main() -> ExitCode {
    // clap prints help and usage errors itself: exit codes 0 and 2.
    let arguments = Arguments::parse();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return terminal::fail(&error.into()),
    };
    let code = match runtime.block_on(Box::pin(run(arguments))) {
        Ok(code) => code,
        Err(error) => terminal::fail(&error),
    };
    // A read of standard input may block forever.
    runtime.shutdown_background();
    code
}

async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let place = &arguments.place;
    let done = match arguments.command {
        Command::Up(options) => cluster::up::run(place, &options).await,
        Command::Down(options) => cluster::down::run(place, options.purge),
        Command::Check(options) => return cluster::run_checks(place, &options).await,
        Command::Backup(options) => cluster::copy::backup(&place.state_dir(), &options.file),
        Command::Restore(options) => cluster::copy::restore(&place.state_dir(), &options.file),
        Command::Store(StoreCommand::Move(options)) => cluster::copy::move_store(&place.state_dir(), &options),
        Command::Status => cluster::status::run(place).await,
        Command::Token(command) => cluster::membership::token::run(place, &command).await,
        Command::Join(options) => cluster::membership::join::run(&place.dir_to_join(), &options).await,
        Command::Leave => cluster::membership::leave::run(&place.node_dir()).await,
        Command::Upgrade(options) => cluster::upgrade::run(place, &options).await,
        Command::Uninstall(options) => return cluster::uninstall::run(place, options.verify).await,
        Command::Get(options) => objects::get::run(place, &options).await,
        Command::Describe(options) => objects::describe::run(place, &options).await,
        Command::Apply(options) => objects::apply::run(place, &options).await,
        Command::Delete(options) => objects::delete::run(place, &options).await,
        Command::History(options) => objects::past::history(place, &options).await,
        Command::Diff(options) => objects::past::diff(place, &options).await,
        Command::Undelete(options) => objects::past::undelete(place, &options).await,
        Command::Sql(options) => cluster::copy::sql(&place.state_dir(), &options),
        Command::Events(options) => objects::events::run(place, &options).await,
        Command::Logs(options) => streams::logs::run(place, &options).await,
        Command::Scale(options) => objects::scale::run(place, &options).await,
        Command::Rollout(command) => objects::rollout::run(place, &command).await,
        Command::Image(command) => image::run(place, &command).await,
        Command::TestAssets(options) => cluster::test_assets::run(&options.folder),
        Command::Trace(options) => trace::run(place, &options).await,
        Command::Ui(options) => ui::run(place, &options).await,
        Command::PortForward(options) => streams::forward::run(place, &options).await,
        Command::Cp(options) => streams::copy::run(place, &options).await,
        Command::Exec(options) => return streams::session::exec(place, &options).await,
        Command::Attach(options) => return streams::session::attach(place, &options).await,
        Command::Why(options) => return why::run(place, &options).await,
    };
    done.map(|()| ExitCode::SUCCESS)
}
