//! Files that tell a member of a job where its peers are. Pure.
//!
//! A manifest says which files there are and what they are made of; the addresses come from the job's
//! [`PeersRecord`], so that a file can follow a member that moves while the manifest stays as it is.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::job::peers::PeersRecord;

/// `peers` of a manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeersStanza {
    /// Files by their path below the pod's home, such as `etc/volcano/worker.host`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, Vec<PeerPart>>,
    /// Variables, which stand in the file [`VARIABLES_FILE`] for a shell.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, Vec<PeerPart>>,
    /// What processes that run are told when a file has changed; `None`: nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_change: Option<PeerChange>,
    /// Files below `.ssh` with which members reach each other. No process is started before they are there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ssh: Option<SshStanza>,
}

/// `ssh` of `peers`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SshStanza {
    /// Port at which the members' servers listen.
    pub port: u16,
}

/// What the processes of a member are told when its peers are elsewhere. The files are rewritten before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeerChange {
    /// They get a signal.
    Signal(PeerSignal),
    /// Those that know an address where a peer is no longer are stopped and started again on their node.
    Restart,
}

/// Signals that ask a process to read its files again. Those that end a process by custom are not among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum PeerSignal {
    Hup,
    Usr1,
    Usr2,
    Winch,
}

impl PeerSignal {
    /// The signals that `rcfarm/on-peer-change` may name.
    pub const ALL: [PeerSignal; 4] =
        [PeerSignal::Hup, PeerSignal::Usr1, PeerSignal::Usr2, PeerSignal::Winch];

    /// Its name, such as `HUP`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            PeerSignal::Hup => "HUP",
            PeerSignal::Usr1 => "USR1",
            PeerSignal::Usr2 => "USR2",
            PeerSignal::Winch => "WINCH",
        }
    }

    /// The signal of a name, with or without `SIG`.
    #[must_use]
    pub fn of(name: &str) -> Option<PeerSignal> {
        let short = name.strip_prefix("SIG").unwrap_or(name);
        PeerSignal::ALL.into_iter().find(|signal| signal.name() == short)
    }
}

/// File with [`PeersStanza::variables`], below the pod's home.
pub const VARIABLES_FILE: &str = "peers.env";
/// Files of one pod.
const MOST_PEER_FILES: usize = 64;

/// A part of a file or of a variable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PeerPart {
    /// Text, as it is.
    Text(String),
    /// The members of a task.
    All {
        /// The task.
        all: String,
        /// How they are written.
        form: PeersForm,
    },
    /// One member. Nothing is written while it has no node.
    One {
        /// The task.
        one: String,
        /// Its index.
        index: u32,
        /// How it is written.
        form: PeerForm,
    },
}

/// How the members of a task are written. Members without a node are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeersForm {
    /// Hosts, divided by commas.
    Hosts,
    /// A host per line.
    Lines,
    /// A list of `"host:port"` in JSON.
    Endpoints,
    /// A host file of MPI: `host slots=<n>` per line.
    Slots(u32),
}

/// How one member is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeerForm {
    /// Its host.
    Host,
    /// Its port.
    Port,
    /// `host:port`.
    Endpoint,
}

impl PeerPart {
    /// A text that is written as it is.
    pub fn text(text: impl Into<String>) -> PeerPart {
        PeerPart::Text(text.into())
    }

    /// The members of a task.
    #[must_use]
    pub fn all(task: &str, form: PeersForm) -> PeerPart {
        PeerPart::All { all: task.to_owned(), form }
    }

    /// The address of the member `index` of a task; nothing while it has no node.
    #[must_use]
    pub fn one(task: &str, index: u32, form: PeerForm) -> PeerPart {
        PeerPart::One { one: task.to_owned(), index, form }
    }

    /// The task whose members it names.
    #[must_use]
    pub fn task(&self) -> Option<&str> {
        match self {
            PeerPart::Text(_) => None,
            PeerPart::All { all: task, .. } | PeerPart::One { one: task, .. } => Some(task),
        }
    }

    fn write(&self, peers: &PeersRecord, text: &mut String) {
        match self {
            PeerPart::Text(part) => text.push_str(part),
            PeerPart::All { all, form } => {
                let members = peers.placed(all);
                let written = match form {
                    PeersForm::Hosts => {
                        members.map(|peer| peer.host.as_str()).collect::<Vec<_>>().join(",")
                    }
                    PeersForm::Lines => members.map(|peer| format!("{}\n", peer.host)).collect(),
                    PeersForm::Endpoints => {
                        serde_json::json!(members.map(|peer| peer.endpoint()).collect::<Vec<_>>())
                            .to_string()
                    }
                    PeersForm::Slots(slots) => {
                        members.map(|peer| format!("{} slots={slots}\n", peer.host)).collect()
                    }
                };
                text.push_str(&written);
            }
            PeerPart::One { one, index, form } => {
                let Some(peer) = peers.member(one, *index) else { return };
                match form {
                    PeerForm::Host => text.push_str(&peer.host),
                    PeerForm::Port => {
                        text.push_str(&peer.port.map(|port| port.to_string()).unwrap_or_default());
                    }
                    PeerForm::Endpoint => text.push_str(&peer.endpoint()),
                }
            }
        }
    }
}

fn written(parts: &[PeerPart], peers: &PeersRecord) -> String {
    let mut text = String::new();
    parts.iter().for_each(|part| part.write(peers, &mut text));
    text
}

/// A word of a shell that is this text: addresses are what other machines say of themselves.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

impl PeersStanza {
    /// Whether it says nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.variables.is_empty() && self.ssh.is_none()
    }

    /// The tasks of which it tells.
    pub fn tasks(&self) -> impl Iterator<Item = &str> {
        let parts = self.files.values().chain(self.variables.values()).flatten();
        parts.filter_map(PeerPart::task)
    }

    /// The variables with these addresses. A variable that is no name is left out.
    #[must_use]
    pub fn values(&self, peers: &PeersRecord) -> BTreeMap<String, String> {
        let variables = self.variables.iter().filter(|(name, _)| is_name(name));
        variables.map(|(name, parts)| (name.clone(), written(parts, peers))).collect()
    }

    /// The first peer of which it tells and that is elsewhere than before. A member of a list that has no node now or had
    /// none before has not moved. One that is told of by itself has also moved if it had no node: a text without it says
    /// nothing.
    #[must_use]
    pub fn moved(&self, before: &PeersRecord, now: &PeersRecord) -> Option<(&str, u32)> {
        let parts = self.files.values().chain(self.variables.values()).flatten();
        let moved = |task: &str, index: u32, is_alone: bool| {
            let Some(now) = now.member(task, index) else { return false };
            before.member(task, index).map_or(is_alone, |before| before != now)
        };
        let mut each = parts.filter_map(|part| match part {
            PeerPart::Text(_) => None,
            PeerPart::One { one, index, .. } => {
                moved(one, *index, true).then_some((one.as_str(), *index))
            }
            PeerPart::All { all, .. } => {
                let count = now.tasks.get(all).map_or(0, Vec::len);
                let count = u32::try_from(count).unwrap_or(u32::MAX);
                (0..count).find(|n| moved(all, *n, false)).map(|n| (all.as_str(), n))
            }
        });
        each.next()
    }

    /// The files with these addresses, by path. A path that leaves the pod's home, and a variable that is no name, is left
    /// out.
    #[must_use]
    pub fn rendered(&self, peers: &PeersRecord) -> BTreeMap<String, String> {
        let files = self.files.iter().filter(|(path, _)| is_path(path)).take(MOST_PEER_FILES);
        let mut files: BTreeMap<String, String> =
            files.map(|(path, parts)| (path.clone(), written(parts, peers))).collect();
        let variables = self.values(peers).into_iter();
        let variables: String =
            variables.map(|(name, value)| format!("{name}={}\n", quoted(&value))).collect();
        if !variables.is_empty() {
            files.insert(VARIABLES_FILE.to_owned(), variables);
        }
        files
    }
}

/// Whether a path stays below the directory that it begins in.
fn is_path(path: &str) -> bool {
    let is_segment = |one: &str| !matches!(one, "" | "." | "..") && !one.contains('\0');
    path.split('/').all(is_segment)
}

fn is_name(name: &str) -> bool {
    let is_legal = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(is_legal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::peers::PeerAddress;

    fn peers(hosts: &[Option<&str>]) -> PeersRecord {
        let address = |host: &&str| PeerAddress { host: (*host).to_owned(), port: Some(7) };
        let hosts = hosts.iter().map(|host| host.as_ref().map(address)).collect();
        PeersRecord { tasks: [("w".to_owned(), hosts)].into(), ..PeersRecord::default() }
    }

    #[test]
    fn members_are_written_in_each_form() {
        let peers = peers(&[Some("a"), None, Some("b")]);
        for (part, wanted) in [
            (PeerPart::text("x"), "x"),
            (PeerPart::all("w", PeersForm::Hosts), "a,b"),
            (PeerPart::all("w", PeersForm::Lines), "a\nb\n"),
            (PeerPart::all("w", PeersForm::Endpoints), r#"["a:7","b:7"]"#),
            (PeerPart::all("w", PeersForm::Slots(2)), "a slots=2\nb slots=2\n"),
            (PeerPart::all("other", PeersForm::Endpoints), "[]"),
            (PeerPart::one("w", 2, PeerForm::Host), "b"),
            (PeerPart::one("w", 2, PeerForm::Port), "7"),
            (PeerPart::one("w", 2, PeerForm::Endpoint), "b:7"),
            (PeerPart::one("w", 1, PeerForm::Host), ""),
            (PeerPart::one("w", 9, PeerForm::Host), ""),
        ] {
            assert_eq!(written(std::slice::from_ref(&part), &peers), wanted, "{part:?}");
            let text = serde_json::to_string(&part).unwrap();
            assert_eq!(serde_json::from_str::<PeerPart>(&text).unwrap(), part, "{text}");
        }
    }

    /// The address of a node is what its agent says: it must not add a line to a file or a command to a shell.
    #[test]
    fn hostile_addresses_are_left_out() {
        let hosts = ["a\nevil", "b c", "';x", "", "\"", "d\\", "10.0.0.1", "[fe80::1%eth0]"];
        let peers = peers(&hosts.map(Some));
        let stanza = PeersStanza {
            files: [("hosts".to_owned(), vec![PeerPart::all("w", PeersForm::Lines)])].into(),
            variables: [(
                "H".to_owned(),
                vec![PeerPart::text("it's"), PeerPart::one("w", 0, PeerForm::Host)],
            )]
            .into(),
            ..PeersStanza::default()
        };
        let files = stanza.rendered(&peers);
        assert_eq!(files["hosts"], "10.0.0.1\n[fe80::1%eth0]\n");
        assert_eq!(files[VARIABLES_FILE], "H='it'\\''s'\n");
    }

    #[test]
    fn files_stay_below_the_home_and_variables_have_names() {
        let text = || vec![PeerPart::text("t")];
        let paths = ["a/b", "../a", "/a", "a//b", "a/./b", "", "a/.."];
        let names = ["A_1", "1A", "A B", "", "A=x;y"];
        let stanza = PeersStanza {
            files: paths.map(|path| (path.to_owned(), text())).into(),
            variables: names.map(|name| (name.to_owned(), text())).into(),
            ..PeersStanza::default()
        };
        let files = stanza.rendered(&PeersRecord::default());
        assert_eq!(files.keys().collect::<Vec<_>>(), ["a/b", VARIABLES_FILE]);
        assert_eq!(files[VARIABLES_FILE], "A_1='t'\n");
    }

    #[test]
    fn change_is_a_word_or_a_known_signal() {
        for signal in PeerSignal::ALL {
            let change = PeerChange::Signal(signal);
            let text = serde_json::to_string(&change).unwrap();
            assert_eq!(text, format!(r#"{{"signal":"{}"}}"#, signal.name()));
            assert_eq!(serde_json::from_str::<PeerChange>(&text).unwrap(), change);
            assert_eq!(PeerSignal::of(signal.name()), Some(signal));
            assert_eq!(PeerSignal::of(&format!("SIG{}", signal.name())), Some(signal));
        }
        assert_eq!(serde_json::to_string(&PeerChange::Restart).unwrap(), r#""restart""#);
        for name in ["KILL", "TERM", "hup", "", "SIG", "SIGSIGHUP", "1"] {
            assert_eq!(PeerSignal::of(name), None, "{name}");
        }
        assert!(serde_json::from_str::<PeerChange>(r#"{"signal":"KILL"}"#).is_err());
    }

    #[test]
    fn member_has_moved_that_had_another_address() {
        let all = vec![PeerPart::all("w", PeersForm::Hosts)];
        let one = vec![PeerPart::text("x"), PeerPart::one("w", 1, PeerForm::Host)];
        let stanza = |parts: Vec<PeerPart>| PeersStanza {
            files: [("hosts".to_owned(), parts)].into(),
            ..PeersStanza::default()
        };
        let other = vec![PeerPart::all("v", PeersForm::Hosts)];
        let (a, b, c) = (Some("a"), Some("b"), Some("c"));
        for (before, now, of_all, of_one) in [
            (vec![a, b], vec![a, b], None, None),
            (vec![a, b], vec![a, c], Some(1), Some(1)),
            (vec![a, b], vec![c, b], Some(0), None),
            (vec![a, b], vec![a, None], None, None),
            (vec![a, None], vec![a, b], None, Some(1)),
            (vec![a], vec![a, b], None, Some(1)),
            (vec![a, b], vec![a], None, None),
            (vec![a, b, c], vec![a, b], None, None),
        ] {
            let (before, now) = (peers(&before), peers(&now));
            let index = |parts: &Vec<PeerPart>| {
                stanza(parts.clone()).moved(&before, &now).map(|(_, index)| index)
            };
            assert_eq!([index(&all), index(&one)], [of_all, of_one], "{before:?} {now:?}");
            assert_eq!(index(&other), None);
        }
        let mut port = peers(&[a, b]);
        port.tasks.get_mut("w").unwrap()[0].as_mut().unwrap().port = Some(8);
        assert_eq!(stanza(all).moved(&peers(&[a, b]), &port), Some(("w", 0)));
    }
}
