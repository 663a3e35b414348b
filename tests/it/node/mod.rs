//! The node agent on the emulator, with real processes; `presence` and `reports` have none. `attack` is one on the built program.

mod adoption;
mod attack;
mod devices;
mod health;
mod hostile;
mod logs;
mod owners;
mod peer_change;
mod peers;
mod pods;
mod ports;
mod presence;
mod reports;
mod services;
mod single_instance;
mod trust;
mod users;
