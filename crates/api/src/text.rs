//! What types that are texts have in common.

/// `Display` and `Debug` of a type around a text, as the text.
macro_rules! displays_as_text {
    ($type:ident) => {
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(&self.0)
            }
        }
        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Debug::fmt(&*self.0, f)
            }
        }
    };
}

/// `Display` of an enum without fields, as the name of the variant.
macro_rules! displays_as_variant {
    ($type:ident) => {
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(&format!("{self:?}"))
            }
        }
    };
}

/// Conversions for serde's `try_from` and `into`, by `FromStr` and `Display`.
macro_rules! converts_as_text {
    ($type:ident) => {
        impl TryFrom<String> for $type {
            type Error = <$type as std::str::FromStr>::Err;
            fn try_from(text: String) -> Result<Self, Self::Error> {
                text.parse()
            }
        }
        impl From<$type> for String {
            fn from(value: $type) -> String {
                value.to_string()
            }
        }
    };
}

pub(crate) use {converts_as_text, displays_as_text, displays_as_variant};
