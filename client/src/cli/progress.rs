//! Progress bars: for what takes over a second, on a terminal only.

use std::{
    io::IsTerminal as _,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tilesim_server::runner::RunProgress;
use tokio::task::JoinHandle;

/// How long something takes before it gets a bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// A bar that shows itself after a while and goes when dropped.
pub struct Bar {
    bar: ProgressBar,
    task: JoinHandle<()>,
}

impl Bar {
    /// A bar over `total` things of a list.
    pub fn list(what: &'static str, total: usize) -> Self {
        let style = "{elapsed_precise} {bar:40} {pos}/{len} {msg}, {eta} left";
        let bar = hidden(Some(total as u64), style, what);
        Self {
            task: show_later(bar.clone()),
            bar,
        }
    }

    /// A bar over the work-items of one run. On a server, only the time is known.
    pub fn run(progress: Option<Arc<RunProgress>>) -> Self {
        let Some(progress) = progress else {
            let bar = hidden(
                None,
                "{elapsed_precise} {spinner} {msg}",
                "simulating on the server",
            );
            return Self {
                task: show_later(bar.clone()),
                bar,
            };
        };
        let style = "{elapsed_precise} {bar:40} {pos}/{len} work-items, cycle {msg}, {eta} left";
        let bar = hidden(Some(0), style, "");
        let shown = bar.clone();
        let task = tokio::spawn(async move {
            tokio::time::sleep(PATIENCE).await;
            reveal(&shown);
            loop {
                shown.set_length(progress.items.load(Ordering::Relaxed));
                shown.set_position(progress.items_done.load(Ordering::Relaxed));
                shown.set_message(progress.cycle.load(Ordering::Relaxed).to_string());
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        Self { bar, task }
    }

    /// One more thing of the list is done.
    pub fn step(&self) {
        self.bar.inc(1);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.task.abort();
        self.bar.finish_and_clear();
    }
}

fn hidden(total: Option<u64>, style: &str, message: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden());
    // A style that does not parse would leave the default one, which is good enough.
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar.with_message(message)
}

fn reveal(bar: &ProgressBar) {
    if std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::stderr());
        bar.enable_steady_tick(Duration::from_millis(100));
    }
}

fn show_later(bar: ProgressBar) -> JoinHandle<()> {
    tokio::spawn(async move {
        tokio::time::sleep(PATIENCE).await;
        reveal(&bar);
    })
}
