//! The tap: a task that keeps a replication slot, and the receiver of its events.
//!
//! ```text
//!                 connect, create the slot, start the stream
//!   away ────────────────────────────────────────────────────► standing ──► rows, commits
//!    ▲                                                            │
//!    └── pause, twice as long each time ◄── gap ◄─────────────────┘ broken, silent or stalled
//! ```

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};

use crate::address::Address;
use crate::decode::{Decoder, Message, time};
use crate::error::TapError;
use crate::event::{Event, Rows, Value};
use crate::options::TapOptions;
use crate::session::Streamed;
use crate::slot::Slot;

/// The time for which a slot must have stood so that the next pause is short again.
const LASTED: Duration = Duration::from_secs(60);
/// Maximum size of the values in one event, in bytes, beside one row.
const BATCH: usize = 256 * 1024;

/// Streams the committed rows of a PostgreSQL publication. See the [crate](crate) for an example.
///
/// A separate task keeps the connection; it ends when the tap is dropped. If it panics, the next
/// call of [`next`](Self::next) starts it again and reports a gap.
#[derive(Debug)]
pub struct Tap {
    events: mpsc::Receiver<Event>,
    task: JoinHandle<()>,
    address: Address,
    options: TapOptions,
}

impl Tap {
    /// Starts to connect, in the background. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`TapError::Setting`] if an option is not usable. Problems of the connection are events.
    pub fn open(address: Address, options: TapOptions) -> Result<Self, TapError> {
        options.check()?;
        let (events, task) = start(&address, &options, None);
        Ok(Self {
            events,
            task,
            address,
            options,
        })
    }

    /// Waits for the next event. Nothing is lost if the future is dropped.
    pub async fn next(&mut self) -> Event {
        if let Some(event) = self.events.recv().await {
            return event;
        }
        tracing::error!("the task of the commit tap panicked; it is started again");
        let pause = self.options.longest_pause;
        (self.events, self.task) = start(&self.address, &self.options, Some(pause));
        Event::Gap(TapError::Died)
    }

    /// Returns the next event, if one waits.
    pub fn try_next(&mut self) -> Option<Event> {
        self.events.try_recv().ok()
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        // The connection closes at once, even if the server does not answer. So the slot ends, too.
        self.task.abort();
    }
}

/// Starts the task, after a pause if there is one.
fn start(
    address: &Address,
    options: &TapOptions,
    pause: Option<Duration>,
) -> (mpsc::Receiver<Event>, JoinHandle<()>) {
    let (sender, events) = mpsc::channel(options.events.max(1));
    let keeper = Keeper {
        address: address.clone(),
        options: options.clone(),
        events: sender,
    };
    let task = tokio::spawn(async move {
        if let Some(pause) = pause {
            tokio::time::sleep(pause).await;
        }
        keeper.keep().await;
    });
    (events, task)
}

/// Keeps a slot.
struct Keeper {
    address: Address,
    options: TapOptions,
    events: mpsc::Sender<Event>,
}

impl Keeper {
    async fn keep(self) {
        let mut pause = self.options.pause;
        loop {
            let error = match Slot::stand(&self.address, &self.options).await {
                Ok(slot) => {
                    let since = Instant::now();
                    let error = match self.stream(slot).await {
                        Ok(never) => match never {},
                        Err(error) => error,
                    };
                    if since.elapsed() > LASTED {
                        pause = self.options.pause;
                    }
                    error
                }
                Err(error) => error,
            };
            // No slot keeps WAL now, so the wait for the receiver needs no limit.
            if self.events.send(Event::Gap(error)).await.is_err() {
                return;
            }
            tokio::time::sleep(pause).await;
            pause = self.options.next_pause(pause);
        }
    }

    /// Passes changes on until the connection ends.
    async fn stream(&self, mut slot: Slot) -> Result<std::convert::Infallible, TapError> {
        self.send(&mut slot, Event::Standing).await?;
        let mut decoder = Decoder::default();
        let mut batch: Option<Rows> = None;
        let mut size = 0;
        let mut committed_at = time(0);
        let mut confirm = tokio::time::interval(self.options.confirm_every());
        confirm.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let streamed = tokio::select! {
                biased;
                _ = confirm.tick(), if slot.has_news() => {
                    slot.confirm().await?;
                    continue;
                }
                streamed = slot.next(self.options.silence) => streamed?,
            };
            let (change, sent) = match streamed {
                Streamed::KeepAlive { position, answer } => {
                    slot.received(position);
                    if answer {
                        slot.confirm().await?;
                    }
                    continue;
                }
                Streamed::Change(change, sent) => (change, time(sent)),
            };
            match decoder.decode(change)? {
                Message::Begin(at) => committed_at = at,
                Message::Row(table, row) => {
                    let full = size >= BATCH
                        || batch.as_ref().is_some_and(|rows| {
                            rows.table != table || rows.rows.len() >= self.options.rows
                        });
                    if full && let Some(rows) = batch.take() {
                        self.send(&mut slot, Event::Rows(rows)).await?;
                    }
                    let rows = batch.get_or_insert_with(|| {
                        size = 0;
                        Rows {
                            table,
                            rows: Vec::new(),
                            committed_at,
                            sent_at: sent,
                        }
                    });
                    size += row.values.iter().map(Value::size).sum::<usize>();
                    rows.rows.push(row);
                    rows.sent_at = sent;
                }
                Message::Commit(commit) => {
                    if let Some(rows) = batch.take() {
                        self.send(&mut slot, Event::Rows(rows)).await?;
                    }
                    size = 0;
                    slot.received(commit.position);
                    self.send(&mut slot, Event::Commit(commit)).await?;
                }
                Message::Other => {}
            }
        }
    }

    /// Passes an event to the receiver. Sends keepalives to the server while the receiver is busy.
    async fn send(&self, slot: &mut Slot, event: Event) -> Result<(), TapError> {
        if let Ok(place) = self.events.try_reserve() {
            place.send(event);
            return Ok(());
        }
        let stall = self.options.stall;
        let end = tokio::time::sleep(stall);
        tokio::pin!(end);
        loop {
            tokio::select! {
                biased;
                place = self.events.reserve() => {
                    if let Ok(place) = place {
                        place.send(event);
                    }
                    // Without a receiver the task is aborted.
                    return Ok(());
                }
                () = &mut end => return Err(TapError::Stalled(stall)),
                () = tokio::time::sleep(self.options.confirm_every()) => slot.confirm().await?,
            }
        }
    }
}
