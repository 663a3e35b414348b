//! The node agent on the emulator, with real processes; `reports` has none.

mod adoption;
mod devices;
mod health;
mod hostile;
mod logs;
mod owners;
mod peers;
mod pods;
mod reports;
mod services;
mod single_instance;
mod trust;
mod users;
