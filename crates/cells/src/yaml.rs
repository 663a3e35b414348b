//! YAML as Go's parser reads it, with the path of what is wrong.

use rcfarm_api::FieldError;

pub(crate) fn read<T: serde::de::DeserializeOwned + Default>(text: &str) -> Result<T, FieldError> {
    let options = serde_saphyr::options! {
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins,
    };
    let mut track = serde_path_to_error::Track::new();
    let value: Result<Option<T>, _> =
        serde_saphyr::with_deserializer_from_str_with_options(text, options, |yaml| {
            Option::deserialize(serde_path_to_error::Deserializer::new(yaml, &mut track))
        });
    match value {
        Ok(value) => Ok(value.unwrap_or_default()),
        Err(error) => {
            let path = track.path();
            let whole = path.iter().len() == 0;
            let path = if whole { FieldError::WHOLE.to_owned() } else { path.to_string() };
            let problem = format!("it cannot be read: {}", error.without_snippet());
            Err(FieldError::new(path, problem, "correct the YAML at this place"))
        }
    }
}

use serde::Deserialize as _;
