//! `rcfarm job dispatch`: a job of a JobTemplate, with metadata and a payload.
//!
//! Keys read: the job of the token, the template. Key written: the job's record, which must not exist, in one transaction
//! that checks the template's ModifyIndex. The job of a token has a name that is made of it, so it is made once however
//! often the command is repeated, as long as its record is there. The template is read only if it is not: a repetition is
//! answered also when the template was changed or deleted meanwhile.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::{Value, json};

use super::apply::check_new;
use crate::cli::context::CommandContext;
use crate::cli::documents::find;
use crate::cli::failure::{CliExit, failure};
use crate::cli::flow::kind::JOB_TEMPLATE;
use crate::cli::wanted::WantedObject as _;
use crate::flow::dispatch::DispatchedJob;
use crate::flow::parameters::Dispatch;
use crate::job::document::LARGEST_PAYLOAD;
use rcfarm_api::FieldError;
use rcfarm_api::ids::Namespaced;
use rcfarm_api::key;
use rcfarm_store::Op;

#[derive(clap::Args)]
pub struct DispatchArgs {
    /// The JobTemplate: its name, or <namespace>/<name>
    #[arg(value_name = "TEMPLATE")]
    template: Namespaced,
    /// Metadata of the job: the members have it as the variable RCFARM_META_<KEY>; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = super::run::pair)]
    meta: Vec<(String, String)>,
    /// File whose content the members find in the file that RCFARM_PAYLOAD names, at most 16 KiB; - reads standard input
    #[arg(long, value_name = "FILE")]
    payload: Option<PathBuf>,
    /// Text that stands for this dispatch: repeated with it, the command makes no second job
    #[arg(long, alias = "idempotency-token", value_name = "TEXT")]
    token: Option<String>,
}

/// What became of a dispatch.
struct Dispatched {
    job: Namespaced,
    /// Whether this command has made it.
    is_new: bool,
}

pub(super) async fn run(context: &CommandContext, args: &DispatchArgs) -> anyhow::Result<CliExit> {
    let template = &args.template;
    let given = Dispatch {
        meta: meta(&args.meta)?,
        payload: args.payload.as_deref().map(payload).transpose()?,
        token: args.token.clone(),
    };
    let unique = context.ids.ordered_uuid(context.now()).as_u64_pair().1;
    let what = format!("JobTemplate {template}");
    let done = context.edit(what, || attempt(context, template, &given, unique)).await?;
    let Dispatched { job, is_new } = done;
    let shown = json!({"template": template, "job": job, "created": is_new});
    context.show(&shown, || match is_new {
        true => format!("{job}: created"),
        false => format!("{job}: this dispatch has been made before"),
    })
}

/// `None`: template or job have changed meanwhile.
async fn attempt(
    context: &CommandContext,
    template: &Namespaced,
    given: &Dispatch,
    unique: u64,
) -> anyhow::Result<Option<Dispatched>> {
    let refused = |found: Vec<FieldError>| {
        let why = format!("JobTemplate {template}: {}", FieldError::list(&found));
        failure(why, "nothing was dispatched")
    };
    if let Some(job) = given.token_job(template) {
        let job = job.map_err(refused)?;
        if is_made(context, template, given, &job).await? {
            return Ok(Some(Dispatched { job, is_new: false }));
        }
    }
    let (entry, document) = find(context, &JOB_TEMPLATE, template).await?;
    let DispatchedJob { id, document } = given.job(template, &document, unique).map_err(refused)?;
    let one = check_new(context, &id, document).await?;
    let guard = Op::CheckIndex { key: key::job_template(template), index: entry.modify_index };
    let reason = format!("dispatched from JobTemplate {template}");
    if one.commit(context, Some(guard), reason).await?.is_err() {
        return Ok(None);
    }
    for warning in one.warnings() {
        context.note(warning);
    }
    Ok(Some(Dispatched { job: id, is_new: true }))
}

/// Whether the job of a token is there. It must be of the same dispatch.
async fn is_made(
    context: &CommandContext,
    template: &Namespaced,
    given: &Dispatch,
    job: &Namespaced,
) -> anyhow::Result<bool> {
    let Some(stored) = context.get(&key::job(job)).await? else { return Ok(false) };
    let stored: Value = serde_json::from_slice(&stored.value).unwrap_or_default();
    if let Some(what) = given.difference(template, &stored) {
        let why = format!("the token has been used: job {job} is there, with another {what}");
        return Err(failure(why, "choose another --token for another dispatch"));
    }
    Ok(true)
}

fn meta(given: &[(String, String)]) -> anyhow::Result<BTreeMap<String, String>> {
    let mut meta = BTreeMap::new();
    for (key, value) in given {
        if meta.insert(key.clone(), value.clone()).is_some() {
            return Err(failure(format!("--meta {key} is there twice"), "give it once"));
        }
    }
    Ok(meta)
}

/// Reads a payload. Of one that is too large, only the beginning is read.
fn payload(path: &Path) -> anyhow::Result<Vec<u8>> {
    let shown = || format!("{} (--payload)", path.display());
    let from: Box<dyn std::io::Read> = match path.as_os_str() == "-" {
        true => Box::new(std::io::stdin()),
        false => Box::new(std::fs::File::open(path).with_context(shown)?),
    };
    let mut bytes = Vec::new();
    from.take(LARGEST_PAYLOAD as u64 + 1).read_to_end(&mut bytes).with_context(shown)?;
    if bytes.len() > LARGEST_PAYLOAD {
        let why = format!("{}: it has more than {LARGEST_PAYLOAD} bytes", shown());
        return Err(failure(why, "store it elsewhere, and give its address with --meta"));
    }
    Ok(bytes)
}
