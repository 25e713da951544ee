//! Writes recordings for other programs.

mod event_list;
mod pickler;
mod snapshot;

pub use event_list::write_event_list;
pub use snapshot::write_snapshot;
