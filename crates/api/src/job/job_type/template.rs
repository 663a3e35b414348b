//! Texts with values of a member: `${rank}`, `${host:Master:0}`. Pure.

use crate::manifest::{PeerForm, PeersForm};

/// A part of a text. `$${` is the text `${`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplatePart {
    /// Text without a value.
    Text(String),
    /// A value that does not change while the member runs.
    Value(EnvValue),
    /// Address of the member itself: `${host}`, `${port}`, `${address}`.
    Own(PeerForm),
    /// Address of one member: `${host:Master:0}`, `${port:Master:0}`, `${address:Master:0}`.
    One {
        /// The replica type.
        replica_type: String,
        /// Index of the member.
        index: u32,
        /// Host, port, or both.
        form: PeerForm,
    },
    /// Members of a type that have nodes: `${hosts:Worker}`, `${lines:Worker}`, `${addresses:Worker}`.
    All {
        /// The replica type.
        replica_type: String,
        /// Hosts or addresses, and how they are separated.
        form: PeersForm,
    },
}

/// A value that does not depend on where members are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EnvValue {
    /// `${job}`: name of the job.
    Job,
    /// `${namespace}`: namespace of the job.
    Namespace,
    /// `${type}`: in lower case, as in names of pods.
    Type,
    /// `${index}`: of the member in its replica type, from 0.
    Index,
    /// `${rank}`: among all members, by the order of the replica types.
    Rank,
    /// `${world_size}`: number of all members.
    WorldSize,
    /// `${replicas}` of its own type, or `${replicas:Worker}`.
    Replicas(Option<String>),
}

/// The names that may stand in a text, for messages.
const KNOWN: &str = "${job}, ${namespace}, ${type}, ${index}, ${rank}, ${world_size}, ${replicas}, ${replicas:TYPE}, \
    ${host}, ${port}, ${address}, ${host:TYPE:N}, ${port:TYPE:N}, ${address:TYPE:N}, ${hosts:TYPE}, ${lines:TYPE}, \
    ${addresses:TYPE}; $${ is the text ${";

impl TemplatePart {
    /// The parts of a text.
    ///
    /// # Errors
    /// The first `${…}` that is none of the known values.
    pub fn parse(text: &str) -> Result<Vec<TemplatePart>, String> {
        let (mut parts, mut rest, mut plain) = (Vec::new(), text, String::new());
        while let Some(at) = rest.find("${") {
            if rest[..at].ends_with('$') {
                plain.push_str(&rest[..at]);
                plain.push('{');
                rest = &rest[at + 2..];
                continue;
            }
            plain.push_str(&rest[..at]);
            let inner = &rest[at + 2..];
            let Some(end) = inner.find('}') else {
                return Err(format!("{:?} has no end: a }} is missing", &rest[at..]));
            };
            if !plain.is_empty() {
                parts.push(TemplatePart::Text(std::mem::take(&mut plain)));
            }
            parts.push(value(&inner[..end])?);
            rest = &inner[end + 1..];
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            parts.push(TemplatePart::Text(plain));
        }
        Ok(parts)
    }

    /// The replica type that it names.
    #[must_use]
    pub fn names(&self) -> Option<&str> {
        match self {
            TemplatePart::One { replica_type, .. } | TemplatePart::All { replica_type, .. } => {
                Some(replica_type)
            }
            TemplatePart::Value(EnvValue::Replicas(replica_type)) => replica_type.as_deref(),
            TemplatePart::Text(_) | TemplatePart::Own(_) | TemplatePart::Value(_) => None,
        }
    }

    /// Whether it is written with a port.
    #[must_use]
    pub fn has_port(&self) -> bool {
        match self {
            TemplatePart::Own(form) | TemplatePart::One { form, .. } => *form != PeerForm::Host,
            TemplatePart::All { form, .. } => *form == PeersForm::Endpoints,
            TemplatePart::Text(_) | TemplatePart::Value(_) => false,
        }
    }
}

fn value(name: &str) -> Result<TemplatePart, String> {
    let unknown = || format!("${{{name}}} is not known; there are {KNOWN}");
    let words: Vec<&str> = name.split(':').collect();
    let one_form = |word: &str| match word {
        "host" => Some(PeerForm::Host),
        "port" => Some(PeerForm::Port),
        "address" => Some(PeerForm::Endpoint),
        _ => None,
    };
    let all_form = |word: &str| match word {
        "hosts" => Some(PeersForm::Hosts),
        "lines" => Some(PeersForm::Lines),
        "addresses" => Some(PeersForm::Endpoints),
        _ => None,
    };
    let known = match words[..] {
        ["job"] => Some(TemplatePart::Value(EnvValue::Job)),
        ["namespace"] => Some(TemplatePart::Value(EnvValue::Namespace)),
        ["type"] => Some(TemplatePart::Value(EnvValue::Type)),
        ["index"] => Some(TemplatePart::Value(EnvValue::Index)),
        ["rank"] => Some(TemplatePart::Value(EnvValue::Rank)),
        ["world_size"] => Some(TemplatePart::Value(EnvValue::WorldSize)),
        ["replicas"] => Some(TemplatePart::Value(EnvValue::Replicas(None))),
        ["replicas", of] => Some(TemplatePart::Value(EnvValue::Replicas(Some(of.to_owned())))),
        [word] => one_form(word).map(TemplatePart::Own),
        [word, of] => {
            all_form(word).map(|form| TemplatePart::All { replica_type: of.to_owned(), form })
        }
        [word, of, index] => {
            let index = index.parse().map_err(|_| unknown())?;
            let replica_type = of.to_owned();
            one_form(word).map(|form| TemplatePart::One { replica_type, index, form })
        }
        _ => None,
    };
    known.ok_or_else(unknown)
}
