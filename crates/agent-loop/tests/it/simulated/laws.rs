//! What holds for all runs, beside what the simulator checks.
