//! The conformance kit that every GMM driver passes, and the array device.
