//! One memory for CPUs and accelerators: one pointer valid on every processor.
