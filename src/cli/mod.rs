//! The commands; the only code that prints.
