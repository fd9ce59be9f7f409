//! Rules that let pods' packets pass the host's firewall: Docker, firewalld and ufw drop forwarded
//! packets, and the latter two those to the node itself, unless a rule accepts them.
//!
//! An accept verdict is final only in the table of its rule, so rules go into the table of
//! iptables. Forwarded: two for each range, and one for connections translated for a Service, whose
//! endpoints may be pods of other nodes. To the node: names are asked for at the gateway, and
//! Services may have endpoints here, as `kubernetes` has the API server. They resemble flannel's
//! (`pkg/trafficmngr/iptables`) and have the position of those of CNI's firewall plugin
//! (`plugins/meta/firewall/iptables.go`). A comment marks their owner. Missing tables are not
//! created.

use std::fmt::Write as _;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Output};

use super::masquerade::{self, Family, families};
use crate::bridge::Inner;
use crate::bridge::kernel::settings;
use crate::{Cidr, Error, Ranges, nft, services};

/// Seconds to wait for the xtables lock.
const WAIT: &str = "5";

/// Backend of iptables, nftables or legacy: its programs, the preferred one first. `--version` of a
/// program shows its backend.
struct Way {
    programs: [&'static str; 2],
    is_nft: bool,
}

const WAYS: [Way; 2] = [
    Way {
        programs: ["tables-nft", "tables"],
        is_nft: true,
    },
    Way {
        programs: ["tables-legacy", "tables"],
        is_nft: false,
    },
];

/// nftables chain that filters forwarded packets, or those to the node.
struct Chain {
    table: String,
    name: String,
    is_forward: bool,
    drops: bool,
}

impl Inner {
    /// Enables forwarding again, which `sysctl --system` may have disabled, and inserts the rules
    /// that accept pods' packets; returns descriptions of rules that still drop them.
    pub(in crate::bridge) fn pass(&self) -> Result<Option<String>, Error> {
        let Some(ranges) = self.records().ranges() else {
            return Ok(None);
        };
        if let Err(error) = settings::forward(ranges) {
            tracing::warn!(
                error = crate::bridge::chain(&error),
                "what pods send may not be forwarded"
            );
        }
        let bridge = &self.config.bridge;
        // `nft list tables` of nft 1.0 decodes all rules and aborts on those of Services.
        let listed = list(&["chains"])?;
        let is_there = |family: Family| {
            let own = format!("table {} {} {{", family.word, nft::table(bridge));
            listed.lines().any(|line| line == own)
        };
        if !families(ranges).all(|(family, _)| is_there(family)) {
            tracing::warn!("somebody else removed the tables of the pods' bridge; they are made again");
            masquerade::replace(bridge, ranges, &self.near())?;
            self.lead_ports(&[])?;
        }
        self.keep_guard(&listed);
        let mut told = each_rule(bridge, ranges, &chains()?, |program, rule| {
            if tables(program, "-C", rule).is_err() && number_of(program, rule).is_none() {
                tracing::info!(
                    program,
                    rule = rule.join(" "),
                    "the firewall accepts what pods send and get"
                );
                tables(program, "-I", rule)?;
            }
            Ok(())
        })?;
        for chain in chains()? {
            let (family, _) = chain.table.split_once(' ').unwrap_or_default();
            let mut own = families(ranges).filter(|(own, _)| family == own.word || family == "inet");
            // A chain of a table that nft cannot show may still drop by its policy.
            let table = list(&["table", &chain.table]).unwrap_or_else(|error| {
                tracing::warn!(table = chain.table, %error, "cannot see what a table of nftables drops");
                String::new()
            });
            let ends = chain.drops || ends_in_drop(&table, &chain.name);
            if let Some((_, range)) = own.find(|(_, range)| ends && !is_known(&table, bridge, *range)) {
                let what = if chain.is_forward {
                    "what is forwarded for pods"
                } else {
                    "what pods send to the node, such as questions for names and requests to the API server"
                };
                let (name, table) = (&chain.name, &chain.table);
                write!(
                    told,
                    "chain {name} of nftables' table {table} drops {what} ({range}); have it accept them. "
                )
                .ok();
            }
        }
        Ok(Some(told.trim_end().to_owned()).filter(|told| !told.is_empty()))
    }
}

/// Removes the rules. Succeeds if there are none.
pub(in crate::bridge) fn remove(bridge: &str, ranges: Option<Ranges>) -> Result<(), Error> {
    let Some(ranges) = ranges else { return Ok(()) };
    each_rule(bridge, ranges, &chains()?, |program, rule| {
        while tables(program, "-C", rule).is_ok() {
            tables(program, "-D", rule)?;
        }
        while let Some(number) = number_of(program, rule) {
            let chain = rule.first().copied().unwrap_or_default();
            tables(program, "-D", &[chain, number.to_string().as_str()])?;
        }
        Ok(())
    })
    .map(drop)
}

/// Calls a function for each of the rules in each existing table of iptables. Returns descriptions
/// of tables for which there is no program.
fn each_rule(
    bridge: &str,
    ranges: Ranges,
    chains: &[Chain],
    mut work: impl FnMut(&str, &[&str]) -> Result<(), Error>,
) -> Result<String, Error> {
    let comment = format!("{bridge}: pods");
    let mut unreached = String::new();
    for (family, range) in families(ranges) {
        let table = format!("{} filter", family.word);
        // `/proc/net/ip_tables_names` is that of the thread's network namespace.
        let names = format!("/proc/thread-self/net/{}_tables_names", family.word);
        let names = std::fs::read_to_string(names).unwrap_or_default();
        for way in &WAYS {
            let is_used = |rule: &&String| {
                if way.is_nft {
                    let mut own = chains.iter().filter(|chain| chain.table == table);
                    own.any(|chain| rule.split(' ').next() == Some(chain.name.as_str()))
                } else {
                    names.lines().any(|name| name == "filter")
                }
            };
            let rules = rules(bridge, range);
            let mut used = rules.iter().filter(is_used).peekable();
            if used.peek().is_none() {
                continue;
            }
            let Some(program) = way.program(family.word) else {
                // A chain of nftables is seen to drop without one.
                if !way.is_nft {
                    let program = format!("{}tables-legacy", family.word);
                    write!(
                        unreached,
                        "the table filter of {program} is in use and may drop packets of pods ({range}), \
                         but this program is not installed, by which it would be made to accept them. "
                    )
                    .ok();
                }
                continue;
            };
            for rule in used {
                let rest = ["-m", "comment", "--comment", &comment, "-j", "ACCEPT"];
                work(&program, &rule.split(' ').chain(rest).collect::<Vec<_>>())?;
            }
        }
    }
    Ok(unreached)
}

/// Chains and matches of the rules for a range.
fn rules(bridge: &str, range: Cidr) -> [String; 6] {
    let (gateway, range) = (range.gateway(), range.network_range());
    let tag = services::tag(&services::table(bridge));
    let of_service = format!(
        "-m conntrack --ctstate DNAT -m connmark --mark {tag:#x}/{:#x}",
        services::TAG
    );
    let to_node = format!("INPUT -i {bridge} -s {range}");
    [
        format!("FORWARD -s {range}"),
        format!("FORWARD -d {range}"),
        format!("FORWARD {of_service}"),
        format!("{to_node} -d {gateway} -p udp --dport 53"),
        format!("{to_node} -d {gateway} -p tcp --dport 53"),
        format!("{to_node} {of_service}"),
    ]
}

impl Way {
    fn program(&self, family: &str) -> Option<String> {
        self.programs
            .iter()
            .map(|name| format!("{family}{name}"))
            .find(|program| {
                let said = run(program, &["--version"]);
                said.is_ok_and(|said| {
                    said.status.success() && String::from_utf8_lossy(&said.stdout).contains("nf_tables") == self.is_nft
                })
            })
    }
}

fn tables(program: &str, verb: &str, rule: &[&str]) -> Result<(), Error> {
    let words = [&["-w", WAIT, verb], rule].concat();
    let said = run(program, &words)?;
    if said.status.success() {
        return Ok(());
    }
    Err(Error::Kernel {
        doing: "let pods through the firewall",
        cause: format!("{program}: {}", String::from_utf8_lossy(&said.stderr).trim()),
    })
}

/// Number of a rule in the listing of its chain. Some releases of iptables (1.8.2, 1.8.10) deny by
/// `-C` that there is a rule which they have made: it would be inserted again at each look, and stay.
fn number_of(program: &str, rule: &[&str]) -> Option<usize> {
    let chain = rule.first().copied().unwrap_or_default();
    let said = run(program, &["-w", WAIT, "-S", chain]).ok()?;
    let listing = String::from_utf8_lossy(&said.stdout);
    let mut rules = listing.lines().filter(|line| line.starts_with("-A "));
    Some(rules.position(|line| shows(line, rule))? + 1)
}

/// True if a line of a listing shows the rule: in another order, with the match of a protocol, with
/// the length of an address, and with the comment in quotes.
fn shows(line: &str, rule: &[&str]) -> bool {
    let words: Vec<&str> = line.split(' ').collect();
    let is_shown = |wanted: &str| {
        let mut rests = words.iter().filter_map(|word| word.strip_prefix(wanted));
        rests.any(|rest| matches!(rest, "" | "/32" | "/128")) || line.contains(&format!("\"{wanted}\""))
    };
    rule.iter().copied().all(is_shown)
}

fn run(program: &str, words: &[&str]) -> Result<Output, Error> {
    let output = Command::new(program).args(words).output();
    output.map_err(|source| Error::io("run", Path::new(program), source))
}

/// Output of `nft list`; empty if there is no nft, or the object was deleted meanwhile.
fn list(words: &[&str]) -> Result<String, Error> {
    let words: Vec<&str> = words.iter().flat_map(|word| word.split(' ')).collect();
    match run("nft", &[&["list"], words.as_slice()].concat()) {
        Ok(said) => listed(&said),
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error),
    }
}

fn listed(said: &Output) -> Result<String, Error> {
    let cause = String::from_utf8_lossy(&said.stderr);
    if said.status.success() {
        Ok(String::from_utf8_lossy(&said.stdout).into_owned())
    } else if cause.starts_with("Error: No such file or directory") {
        Ok(String::new())
    } else {
        Err(Error::Kernel {
            doing: "list the rules of nftables",
            cause: cause.trim().to_owned(),
        })
    }
}

/// True if a chain of nftables drops what comes to the node by IPv4.
pub(crate) fn shuts_node() -> bool {
    let shuts = |chain: &Chain| {
        let of_v4 = chain.table.starts_with("ip ") || chain.table.starts_with("inet ");
        let ends = || list(&["table", &chain.table]).is_ok_and(|table| ends_in_drop(&table, &chain.name));
        !chain.is_forward && of_v4 && (chain.drops || ends())
    };
    chains().is_ok_and(|all| all.iter().any(shuts))
}

/// Chains that filter at the forward or input hook, but those of clusters: these drop only what
/// policies forbid, and nft 1.0 cannot show the tables of Services.
fn chains() -> Result<Vec<Chain>, Error> {
    let mut chains = filtering(&list(&["chains"])?);
    chains.retain(|chain| !chain.table.contains(" skiff_"));
    Ok(chains)
}

fn filtering(listing: &str) -> Vec<Chain> {
    let (mut table, mut name) = (String::new(), String::new());
    let mut found = Vec::new();
    for line in listing.lines().map(str::trim) {
        let begin = |kind: &str| line.strip_prefix(kind)?.strip_suffix(" {").map(str::to_owned);
        if let Some(begun) = begin("table ") {
            table = begun;
        } else if let Some(begun) = begin("chain ") {
            name = begun;
        } else if ["type filter hook forward ", "type filter hook input "]
            .iter()
            .any(|hook| line.starts_with(hook))
        {
            found.push(Chain {
                table: table.clone(),
                name: name.clone(),
                is_forward: line.contains(" hook forward "),
                drops: line.contains("policy drop"),
            });
        }
    }
    found
}

/// True if the last rule of a chain drops all other packets.
fn ends_in_drop(table: &str, chain: &str) -> bool {
    let begin = format!("chain {chain} {{");
    let lines = table.lines().map(str::trim).skip_while(|line| *line != begin);
    let last = lines.take_while(|line| *line != "}").last().unwrap_or_default();
    let counted = last.split_whitespace().skip_while(|word| {
        matches!(*word, "counter" | "packets" | "bytes") || word.bytes().all(|byte| byte.is_ascii_digit())
    });
    counted
        .into_iter()
        .next()
        .is_some_and(|verdict| matches!(verdict, "drop" | "reject"))
}

/// True if a table mentions the pods' bridge, their range, or a range that contains it.
fn is_known(table: &str, bridge: &str, range: Cidr) -> bool {
    let around = |word: &str| {
        let found = word.parse::<Cidr>();
        found.is_ok_and(|found| found.prefix <= range.prefix && found.contains(range.network()))
    };
    let mut words = table.split(|letter: char| letter.is_whitespace() || letter == ',');
    words.any(|word| word.trim_matches('"') == bridge || around(word))
}

#[cfg(test)]
mod tests {
    use super::{ends_in_drop, filtering, is_known, listed, rules, run, shows};

    const FIREWALLD: &str = "table inet firewalld {
	chain filter_FORWARD {
		type filter hook forward priority filter + 10; policy accept;
		ct state { established, related } accept
		iifname \"lo\" accept
		jump filter_FORWARD_ZONES
		ct state invalid drop
		reject with icmpx admin-prohibited
	}

	chain filter_FORWARD_ZONES {
		iifname \"eth0\" goto filter_FWD_public
		goto filter_FWD_public
	}
}
";

    #[test]
    fn each_rule_is_found_in_a_listing() {
        // By `iptables -S` of 1.8.9.
        let end = "-m comment --comment \"skiff0: pods\" -j ACCEPT";
        let of_service = "-m conntrack --ctstate DNAT -m connmark --mark";
        let tag = crate::services::tag(&crate::services::table("skiff0"));
        let lines = [
            format!("-A FORWARD -s 10.244.3.0/24 {end}"),
            format!("-A FORWARD -d 10.244.3.0/24 {end}"),
            format!("-A FORWARD {of_service} {tag:#x}/0xff {end}"),
            format!("-A INPUT -s 10.244.3.0/24 -d 10.244.3.1/32 -i skiff0 -p udp -m udp --dport 53 {end}"),
            format!("-A INPUT -s 10.244.3.0/24 -d 10.244.3.1/32 -i skiff0 -p tcp -m tcp --dport 53 {end}"),
            format!("-A INPUT -s 10.244.3.0/24 -i skiff0 {of_service} {tag:#x}/0xff {end}"),
        ];
        let all = rules("skiff0", "10.244.3.1/24".parse().unwrap());
        for (own, rule) in all.iter().enumerate() {
            let rest = ["-m", "comment", "--comment", "skiff0: pods", "-j", "ACCEPT"];
            let words: Vec<&str> = rule.split(' ').chain(rest).collect();
            let found: Vec<usize> = (0..lines.len()).filter(|line| shows(&lines[*line], &words)).collect();
            assert_eq!(found, [own], "{rule}");
        }
    }

    #[test]
    fn chains_that_drop_are_told_from_others() {
        let listing = "table ip filter {\n\tchain FORWARD {\n\t\ttype filter hook forward priority filter; policy drop;\n\t}\n\tchain INPUT {\n\t\ttype filter hook input priority filter; policy drop;\n\t}\n}\n";
        let found = filtering(&format!("{listing}{FIREWALLD}"));
        let told = found
            .iter()
            .map(|chain| (chain.table.as_str(), chain.name.as_str(), chain.is_forward, chain.drops));
        let told: Vec<_> = told.collect();
        assert_eq!(
            told,
            [
                ("ip filter", "FORWARD", true, true),
                ("ip filter", "INPUT", false, true),
                ("inet firewalld", "filter_FORWARD", true, false)
            ]
        );
        assert!(ends_in_drop(FIREWALLD, "filter_FORWARD"));
        assert!(!ends_in_drop(FIREWALLD, "filter_FORWARD_ZONES"));
        assert!(ends_in_drop("chain a {\n counter packets 3 bytes 4 drop\n}\n", "a"));
        assert!(!ends_in_drop("chain a {\n ip daddr 10.0.0.1 drop\n}\n", "a"));
    }

    #[test]
    fn a_listing_that_fails_is_not_taken_for_an_empty_one() {
        for (script, expected) in [
            ("echo table ip a; echo a warning >&2", Ok("table ip a\n")),
            ("echo 'Error: No such file or directory' >&2; exit 1", Ok("")),
            (
                "echo table ip a; echo 'Error: cache initialization failed' >&2; exit 1",
                Err("list the rules of nftables: Error: cache initialization failed"),
            ),
        ] {
            let told = listed(&run("sh", &["-c", script]).unwrap()).map_err(|error| error.to_string());
            assert_eq!(told.as_deref().map_err(String::as_str), expected, "{script}");
        }
    }

    #[test]
    fn a_firewall_that_knows_the_pods_is_its_operators() {
        let range = "10.244.3.0/24".parse().unwrap();
        for (table, known) in [
            (FIREWALLD, false),
            ("iifname \"skiff0\" goto filter_FWD_trusted", true),
            ("ip saddr 10.244.0.0/16 accept", true),
            ("ip saddr { 10.1.0.0/16, 10.244.3.0/24 } accept", true),
            ("ip saddr 10.244.4.0/24 accept", false),
            ("ip saddr 10.244.3.0/25 accept", false),
        ] {
            assert_eq!(is_known(table, "skiff0", range), known, "{table}");
        }
    }
}
