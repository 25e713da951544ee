//! The host XPU: an accelerator made of a process, with its own page table, faults and memory.
