//! Pod manifests (pure).
