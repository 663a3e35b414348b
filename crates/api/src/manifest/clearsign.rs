//! The body of a PGP clear-signed message (RFC 4880 §7).

use std::borrow::Cow;

const BEGIN: &str = "-----BEGIN PGP SIGNED MESSAGE-----";
const SIGNATURE: &str = "-----BEGIN PGP SIGNATURE-----";
const END: &str = "-----END PGP SIGNATURE-----";

/// The signed body, or the whole text when it is not clear-signed.
///
/// The signature's header is replaced by empty lines, so that line numbers in errors stay right.
///
/// # Errors
/// If the signature block is not closed.
pub(super) fn body(text: &str) -> Result<Cow<'_, str>, &'static str> {
    let is_begin = |line: &str| line.trim_end() == BEGIN;
    let Some(begin) = text.lines().position(is_begin) else {
        return Ok(Cow::Borrowed(text));
    };
    if text.lines().take(begin).any(|line| !line.trim().is_empty()) {
        return Ok(Cow::Borrowed(text)); // the marker stands inside something else
    }
    let mut out = String::with_capacity(text.len());
    let mut in_head = true;
    for (number, line) in text.lines().enumerate() {
        if in_head {
            out.push('\n');
            in_head = number <= begin || !line.trim().is_empty();
        } else if line.trim_end() == SIGNATURE {
            return if text.lines().skip(number).any(|line| line.trim_end() == END) {
                Ok(Cow::Owned(out))
            } else {
                Err("its signature has no end")
            };
        } else {
            out.push_str(line.strip_prefix("- ").unwrap_or(line));
            out.push('\n');
        }
    }
    Err(if in_head { "no empty line ends its head" } else { "it has no signature" })
}
