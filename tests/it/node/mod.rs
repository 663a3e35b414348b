//! The node agent with real processes, on the emulator.

mod adoption;
mod devices;
mod health;
mod hostile;
mod logs;
mod owners;
mod pods;
mod single_instance;
mod trust;
mod users;
