//! Parameters of a template, and whether what a dispatch gives fits them. Pure.
//!
//! Nomad's `parameterized` stanza is the model: keys of metadata that must and may be given, and whether there is a
//! payload. The metadata reaches the members as variables of their containers, the payload as a file.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::job::document::{FieldIssues, FieldReader, LARGEST_PAYLOAD};
use rcfarm_api::FieldError;

/// Limit of the metadata of a dispatch in bytes: it stands in the manifest of each member.
pub const LARGEST_META: usize = 16 * 1024;
/// Limit of a token in bytes.
const LONGEST_TOKEN: usize = 256;
/// Limit of a key in bytes.
const LONGEST_KEY: usize = 64;
/// Keys that a template may declare.
const MOST_KEYS: usize = 64;

/// Whether a dispatch has a payload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PayloadRule {
    #[default]
    Optional,
    Required,
    Forbidden,
}

/// `spec.parameterized` of a template: what a dispatch may, and must, give. By default nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameters {
    /// Whether the template declares any.
    is_declared: bool,
    payload: PayloadRule,
    required: Vec<String>,
    optional: Vec<String>,
}

impl Parameters {
    const NONE: Parameters = Parameters {
        is_declared: false,
        payload: PayloadRule::Forbidden,
        required: Vec::new(),
        optional: Vec::new(),
    };

    /// Refuses a job that nobody dispatches, if its template must be given something.
    ///
    /// # Errors
    /// What is missing.
    pub fn check_undispatched(&self) -> Result<(), FieldError> {
        let payload = (self.payload == PayloadRule::Required).then_some("a payload");
        let keys = self.required.iter().map(String::as_str);
        let needed: Vec<&str> = keys.chain(payload).collect();
        if needed.is_empty() {
            return Ok(());
        }
        let why = format!("its jobs are given {}", needed.join(", "));
        Err(FieldError::new("spec.parameterized", why, "make them with rcfarm job dispatch"))
    }

    /// What is wrong with what a dispatch gives.
    pub(super) fn check(&self, given: &Dispatch) -> Vec<FieldError> {
        let mut problems = Vec::new();
        let mut problem = |what: String, why: String, fix: &str| {
            problems.push(FieldError::new(what, why, fix));
        };
        let fix = match self.is_declared {
            true => "the template's spec.parameterized says what it is given",
            false => "declare it in the template: spec.parameterized",
        };
        for key in self.required.iter().filter(|key| !given.meta.contains_key(*key)) {
            problem(format!("meta.{key}"), "the template requires it".to_owned(), fix);
        }
        for key in given.meta.keys().filter(|key| !self.keys().any(|known| known == *key)) {
            problem(format!("meta.{key}"), "the template does not know it".to_owned(), fix);
        }
        for (key, _) in given.meta.iter().filter(|(_, value)| value.contains('\0')) {
            let why = "a variable holds no NUL".to_owned();
            problem(format!("meta.{key}"), why, "give bytes as the payload");
        }
        let bytes: usize = given.meta.iter().map(|(key, value)| key.len() + value.len()).sum();
        if bytes > LARGEST_META {
            let why = format!("it has {bytes} bytes in all: at most {LARGEST_META}");
            problem("meta".to_owned(), why, "put large values into files");
        }
        let payload = given.payload.as_ref().map(Vec::len);
        match (self.payload, payload) {
            (PayloadRule::Required, None) => {
                problem("payload".to_owned(), "the template requires one".to_owned(), fix);
            }
            (PayloadRule::Forbidden, Some(_)) => {
                problem("payload".to_owned(), "the template takes none".to_owned(), fix);
            }
            (_, Some(bytes)) if bytes > LARGEST_PAYLOAD => {
                let why = format!("it has {bytes} bytes: at most {LARGEST_PAYLOAD}");
                problem("payload".to_owned(), why, "store it elsewhere, and give its address");
            }
            _ => {}
        }
        if let Some(bytes) = given.token.as_ref().map(String::len)
            && !(1..=LONGEST_TOKEN).contains(&bytes)
        {
            let why = format!("it has {bytes} bytes");
            problem("token".to_owned(), why, "write 1 to 256");
        }
        problems
    }

    fn keys(&self) -> impl Iterator<Item = &String> {
        self.required.iter().chain(&self.optional)
    }
}

/// Takes `parameterized` out of a template's spec.
pub fn take(spec: &mut Value, issues: &mut FieldIssues) -> Parameters {
    let stanza = spec.as_object_mut().and_then(|fields| fields.remove("parameterized"));
    let Some(stanza) = stanza.filter(|stanza| !stanza.is_null()) else { return Parameters::NONE };
    let mut fields = FieldReader::of("spec.parameterized", &stanza, issues);
    let words = [
        ("optional", PayloadRule::Optional),
        ("required", PayloadRule::Required),
        ("forbidden", PayloadRule::Forbidden),
    ];
    let read = Parameters {
        is_declared: true,
        payload: fields.word("payload", &words, issues).unwrap_or_default(),
        required: fields.texts("metaRequired", issues),
        optional: fields.texts("metaOptional", issues),
    };
    fields.finish(issues);
    check_keys(&read, issues);
    read
}

/// Refuses keys that name no variable, or the same one.
fn check_keys(parameters: &Parameters, issues: &mut FieldIssues) {
    let lists = [("metaRequired", &parameters.required), ("metaOptional", &parameters.optional)];
    let mut known: BTreeMap<String, &String> = BTreeMap::new();
    for (list, keys) in lists {
        for (n, key) in keys.iter().enumerate() {
            let path = format!("spec.parameterized.{list}[{n}]");
            let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
            let begins = key.starts_with(|first: char| first.is_ascii_alphabetic());
            if !begins || key.len() > LONGEST_KEY || !key.chars().all(fine) {
                let why = format!(
                    "{key:?} is no key: a letter, then letters, digits, '_', '-' and '.', at most {LONGEST_KEY}"
                );
                issues.problem(path, why);
            } else if let Some(other) = known.insert(variable(key), key) {
                issues.problem(path, format!("{key} has the variable of {other}"));
            }
        }
    }
    if known.len() > MOST_KEYS {
        let why = format!("{} keys are too many: at most {MOST_KEYS}", known.len());
        issues.problem("spec.parameterized", why);
    }
}

/// The variable of a key: `RCFARM_META_INPUT_FILE` of `input-file`.
pub(super) fn variable(key: &str) -> String {
    let of = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    format!("RCFARM_META_{}", key.chars().map(of).collect::<String>())
}

/// What a dispatch gives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dispatch {
    pub meta: BTreeMap<String, String>,
    pub payload: Option<Vec<u8>>,
    /// Dispatches with the same token make one job.
    pub token: Option<String>,
}
