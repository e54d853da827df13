//! Signals: SIGTERM and SIGHUP end the process, after active runs were stopped, so that others can resume them
//! immediately; Ctrl-C stops the run.

use std::io;
use std::pin::Pin;

use anyhow::Context as _;
use futures_util::FutureExt as _;

#[cfg(unix)]
pub(crate) use self::unix::StopSignals;
use crate::error::CommandEnding;

#[cfg(unix)]
mod unix {
    use std::io;

    use tokio::signal::unix::{Signal, SignalKind, signal};

    use crate::error::CommandEnding;

    const HANG_UP: u8 = 1;
    const TERMINATE: u8 = 15;

    /// Listens for SIGTERM and SIGHUP. A signal that the process was started to ignore stays ignored, as after `nohup`.
    pub(crate) struct StopSignals {
        terminate: Option<Signal>,
        hang_up: Option<Signal>,
    }

    impl StopSignals {
        pub(crate) fn listen() -> io::Result<Self> {
            let ignored = ignored();
            // NOTE: Without /proc it is unknown whether SIGHUP is ignored: then it keeps its default action, since a
            // listener would end a process that `nohup` protects.
            let is_watched = ignored.is_some_and(|ignored| ignored & mask(HANG_UP) == 0);
            let hang_up = is_watched.then(|| signal(SignalKind::hangup())).transpose()?;
            let is_watched = ignored.is_none_or(|ignored| ignored & mask(TERMINATE) == 0);
            let terminate = is_watched.then(|| signal(SignalKind::terminate())).transpose()?;
            Ok(StopSignals { terminate, hang_up })
        }

        /// Waits for a signal.
        pub(crate) async fn received(&mut self) -> CommandEnding {
            tokio::select! {
                () = next(&mut self.terminate) => CommandEnding::Stopped(TERMINATE),
                () = next(&mut self.hang_up) => CommandEnding::Stopped(HANG_UP),
            }
        }
    }

    async fn next(signal: &mut Option<Signal>) {
        if let Some(signal) = signal
            && signal.recv().await.is_some()
        {
            return;
        }
        std::future::pending::<()>().await;
    }

    fn mask(signal: u8) -> u64 {
        1 << (signal - 1)
    }

    /// The mask of the signals that this process was started to ignore, if the system tells.
    fn ignored() -> Option<u64> {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    }
}

#[cfg(not(unix))]
pub(crate) struct StopSignals;

#[cfg(not(unix))]
impl StopSignals {
    pub(crate) fn listen() -> std::io::Result<Self> {
        Ok(StopSignals)
    }

    pub(crate) async fn received(&mut self) -> crate::error::CommandEnding {
        std::future::pending::<()>().await;
    }
}

/// Waits for any signal that ends the command: those of [`StopSignals`], and Ctrl-C.
pub(crate) struct EndSignals {
    stop: StopSignals,
    interrupts: CtrlCListener,
}

impl EndSignals {
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let stop = StopSignals::listen().context("could not listen for signals")?;
        let mut interrupts = CtrlCListener::new();
        // Its first use: from here on no press ends the process by itself.
        interrupts.was_pressed()?;
        Ok(EndSignals { stop, interrupts })
    }

    pub(crate) async fn received(&mut self) -> anyhow::Result<CommandEnding> {
        tokio::select! {
            stopped = self.stop.received() => Ok(stopped),
            interrupted = self.interrupts.next() => interrupted.map(|()| CommandEnding::Interrupted),
        }
    }

    /// The listener for further presses of Ctrl-C.
    pub(crate) fn into_interrupts(self) -> CtrlCListener {
        self.interrupts
    }
}

/// Listens for Ctrl-C: from its first use on, no press is missed.
pub(crate) struct CtrlCListener(Pin<Box<dyn Future<Output = io::Result<()>> + Send>>);

impl CtrlCListener {
    pub(crate) fn new() -> Self {
        CtrlCListener(Box::pin(tokio::signal::ctrl_c()))
    }

    /// Waits for the next press.
    pub(crate) async fn next(&mut self) -> anyhow::Result<()> {
        (&mut self.0).await.context("could not listen for Ctrl-C")?;
        *self = CtrlCListener::new();
        Ok(())
    }

    /// Whether Ctrl-C was pressed already.
    pub(crate) fn was_pressed(&mut self) -> anyhow::Result<bool> {
        self.next().now_or_never().transpose().map(|pressed| pressed.is_some())
    }
}
