//! The scripted host and the trace checks.
