//! Label selectors and label sets (pure).
