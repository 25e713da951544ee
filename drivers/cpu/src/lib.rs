//! The CPU as a GMM processor: userfaultfd and the pool of host frames.
