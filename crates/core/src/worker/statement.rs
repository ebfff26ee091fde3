//! A statement that may write leases for this node. It exists from before it is sent until its
//! answer is in the [lease book](crate::worker::lease_book).
//!
//! [`under_way`](crate::worker::under_way) describes the effects of a lost answer.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::store::error::StoreError;
use crate::worker::lease_book::LeaseBook;
use crate::worker::under_way::Leases;

/// A statement that may write leases for this node. It raises a doubt when it is dropped without an
/// answer.
pub(crate) struct Statement {
    book: Arc<LeaseBook>,
    number: u64,
    within: Duration,
    answered: bool,
}

impl Drop for Statement {
    fn drop(&mut self) {
        let mut under_way = self.book.under_way();
        if !self.answered {
            under_way.doubt(Instant::now(), self.within);
        }
        under_way.end(self.number);
    }
}

impl LeaseBook {
    /// Sends a statement that may write leases for this node. If no answer comes, the statement may
    /// still take effect within `within`.
    pub(crate) async fn asks<T: Leases>(
        self: &Arc<Self>,
        within: Duration,
        statement: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let mut under_way = Statement {
            number: self.under_way().begin(),
            book: self.clone(),
            within,
            answered: false,
        };
        let answer = statement.await;
        match &answer {
            Ok(answer) => {
                let now = Instant::now();
                let mut known = self.under_way();
                for locked in answer.leased() {
                    known.expect(locked.fence, now);
                }
                under_way.answered = true;
            }
            Err(error) => under_way.answered = error.changed_nothing(),
        }
        answer
    }

    /// Records that the database may hold leases of this node that are not in the book.
    pub(crate) fn doubt(&self, within: Duration) {
        self.under_way().doubt(Instant::now(), within);
    }

    /// Waits until all statements up to this one have ended, with or without an answer.
    pub(crate) async fn answers(&self, up_to: u64) {
        let ended = self.under_way().ended.clone();
        loop {
            let next = ended.notified();
            tokio::pin!(next);
            next.as_mut().enable();
            if self.under_way().have_ended(up_to) {
                return;
            }
            next.await;
        }
    }
}
