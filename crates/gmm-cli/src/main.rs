//! The command `gmm`.
fn main() {}
