//! The reports of nodes to the bench over a loopback connection: 13 bytes each, big-endian. One
//! byte is the kind, four are the job's number, eight are the time in microseconds (or a count).

use std::io::{Error, ErrorKind, Result};

use tokio::io::{AsyncRead, AsyncReadExt};

/// One report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// This job started.
    Started { n: u32, at: i64 },
    /// This job's handler ended.
    Ended { n: u32, at: i64 },
    /// The node stops; its sweeper hinted this number of jobs.
    Swept { jobs: i64 },
}

const FRAME: usize = 13;
const STARTED: u8 = 1;
const ENDED: u8 = 2;
const SWEPT: u8 = 3;

impl Told {
    /// Appends the report in its wire format.
    pub(super) fn write(self, wire: &mut Vec<u8>) {
        let (what, n, number) = match self {
            Self::Started { n, at } => (STARTED, n, at),
            Self::Ended { n, at } => (ENDED, n, at),
            Self::Swept { jobs } => (SWEPT, 0, jobs),
        };
        wire.push(what);
        wire.extend(n.to_be_bytes());
        wire.extend(number.to_be_bytes());
    }

    /// Reads the next report; `None` at the end.
    pub(super) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Result<Option<Self>> {
        let mut frame = [0; FRAME];
        let [first, rest @ ..] = &mut frame;
        if stream.read(std::slice::from_mut(first)).await? == 0 {
            return Ok(None);
        }
        stream.read_exact(rest).await?;
        let [what, n @ .., a, b, c, d, e, f, g, h] = frame;
        let n = u32::from_be_bytes(n);
        let number = i64::from_be_bytes([a, b, c, d, e, f, g, h]);
        match what {
            STARTED => Ok(Some(Self::Started { n, at: number })),
            ENDED => Ok(Some(Self::Ended { n, at: number })),
            SWEPT => Ok(Some(Self::Swept { jobs: number })),
            other => Err(Error::new(
                ErrorKind::InvalidData,
                format!("{other} is not a kind of report"),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_written_is_read_and_what_is_cut_or_strange_is_an_error() {
        let told = [
            Told::Started { n: 7, at: -1 },
            Told::Ended {
                n: u32::MAX,
                at: i64::MAX,
            },
            Told::Swept { jobs: 3 },
        ];
        let mut wire = Vec::new();
        for one in told {
            one.write(&mut wire);
        }
        assert_eq!(wire.len(), 3 * FRAME);
        let mut stream = wire.as_slice();
        for one in told {
            assert_eq!(Told::read(&mut stream).await.unwrap(), Some(one));
        }
        assert_eq!(Told::read(&mut stream).await.unwrap(), None);
        let cut = Told::read(&mut [STARTED, 0, 0].as_slice()).await;
        assert_eq!(cut.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        let strange = Told::read(&mut [9; 13].as_slice()).await;
        assert_eq!(strange.unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
