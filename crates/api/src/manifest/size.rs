//! Limit of a manifest's size.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::FieldError;

/// Default limit of a manifest, in bytes. Farms read the intents of all pods at once, and Consul answers within 10 s.
pub const LARGEST_MANIFEST: usize = 128 * 1024;

static LIMIT: AtomicUsize = AtomicUsize::new(LARGEST_MANIFEST);

/// Sets the limit for this process.
pub fn set_largest_manifest(bytes: usize) {
    LIMIT.store(bytes, Ordering::Relaxed);
}

/// Refuses a manifest of this size if it is above the limit.
///
/// # Errors
/// [`FieldError`] about the whole manifest.
pub fn check_size(bytes: usize) -> Result<(), FieldError> {
    let most = LIMIT.load(Ordering::Relaxed);
    if bytes <= most {
        return Ok(());
    }
    let problem = format!("it has {bytes} bytes: at most {most}");
    let fix = "put large values in files, or raise --max-manifest-bytes of commands and farms";
    Err(FieldError::new(FieldError::WHOLE, problem, fix))
}
